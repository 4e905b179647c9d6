//! Reference pages that come from code, so that they cannot be wrong.

use anyhow::{Result, bail};
use std::fmt::Write;
use std::path::Path;

pub fn run(root: &Path, check: bool) -> Result<()> {
    let path = root.join("docs/reference/errors.md");
    let page = errors();
    if check {
        let on_disk = std::fs::read_to_string(&path).unwrap_or_default();
        if on_disk != page {
            bail!("docs/reference/errors.md is not what the code says; run `cargo xtask docs`");
        }
        println!("docs: up to date");
        return Ok(());
    }
    std::fs::create_dir_all(root.join("docs/reference"))?;
    std::fs::write(path, page)?;
    Ok(())
}

fn errors() -> String {
    let mut page = String::from(
        "# Error codes\n\nWritten by `cargo xtask docs` from the code; do not edit.\n\n\
         Every refusal has the shape `{\"error\": {code, message, hint?, at?, problems?}}`.\n\n\
         ## Requests\n\n| code | status |\n|---|---|\n",
    );
    for code in api::Code::ALL {
        let _ = writeln!(page, "| `{}` | {} |", code.as_str(), code.status());
    }
    page.push_str("\n## Definitions\n\nA document that cannot be read is answered with 400, one that is wrong with 422 and every problem in it.\n\n| code | meaning |\n|---|---|\n");
    for (code, meaning) in lang::codes::ALL {
        let _ = writeln!(page, "| `{code}` | {} |", meaning.replace('|', "\\|"));
    }
    page
}

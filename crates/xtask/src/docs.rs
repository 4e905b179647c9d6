//! Reference pages that come from code, so that they cannot be wrong.

use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

pub fn run(root: &Path, check: bool) -> Result<()> {
    let pages = [("errors.md", errors()), ("openapi.json", openapi(root)?)];
    let folder = root.join("docs/reference");
    for (name, page) in pages {
        let path = folder.join(name);
        if !check {
            std::fs::write(path, page)?;
        } else if std::fs::read_to_string(&path).unwrap_or_default() != page {
            bail!("docs/reference/{name} is not what the code says; run `cargo xtask docs`");
        }
    }
    if check {
        println!("docs: up to date");
    }
    Ok(())
}

/// As the binary prints it. Asking it keeps the server out of what the other chores have to compile.
fn openapi(root: &Path) -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let output = cargo.args(["run", "--quiet", "--package", "onward", "--", "openapi"]).current_dir(root).output()?;
    if !output.status.success() {
        bail!("`onward openapi` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("the document is not UTF-8")
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

//! Reference pages, and blocks of pages, that are generated from code.

use crate::{features, generated, links};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const ERRORS: &str = "docs/reference/errors.md";
const OPENAPI: &str = "docs/reference/openapi.json";

/// A generated block on a page that is otherwise written by hand.
struct Block {
    page: &'static str,
    name: &'static str,
    write: fn() -> String,
}

const BLOCKS: &[Block] = &[
    Block { page: "README.md", name: "features", write: features::short },
    Block { page: "docs/status.md", name: "features", write: features::full },
    Block { page: "docs/reference/http-api.md", name: "events", write: events },
    Block { page: "docs/reference/http-api.md", name: "reasons", write: reasons },
    Block { page: "docs/reference/steps.md", name: "types", write: types },
];

pub fn run(root: &Path, check: bool) -> Result<()> {
    let mut pages = BTreeMap::from([(ERRORS, errors()), (OPENAPI, openapi(root)?)]);
    for Block { page, name, write } in BLOCKS {
        let text = match pages.remove(page) {
            Some(text) => text,
            None => std::fs::read_to_string(root.join(page)).context(*page)?,
        };
        pages.insert(page, generated::fill(&text, name, &write()).context(*page)?);
    }
    if !check {
        return pages.iter().try_for_each(|(path, page)| Ok(std::fs::write(root.join(path), page)?));
    }
    for (path, page) in pages {
        if std::fs::read_to_string(root.join(path)).unwrap_or_default() != page {
            bail!("{path} is out of date; run `cargo xtask docs`");
        }
    }
    let claims = claims(root)?;
    if !claims.is_empty() {
        bail!("only crates/api/src/features.rs may say what does not exist yet:\n{}", claims.join("\n"));
    }
    println!("docs: up to date");
    Ok(())
}

/// Problems of user pages: sentences about what is not built yet, which would go out of date unnoticed, and blocks that
/// nothing generates. ADRs are never edited, so they may describe the past.
fn claims(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (path, page) in links::pages(root)? {
        let path = path.to_string_lossy().replace('\\', "/");
        let is_for_users = path == "README.md" || path.starts_with("docs/") && !path.starts_with("docs/adr/");
        if !is_for_users || path == ERRORS {
            continue;
        }
        let claims = generated::claims(&page).into_iter();
        problems.extend(claims.map(|(line, words)| format!("{path}:{line}: `{words}`")));
        let is_written = |name: &str| BLOCKS.iter().any(|block| block.page == path && block.name == name);
        let unknown = generated::blocks(&page).filter(|name| !is_written(name));
        problems.extend(unknown.map(|name| format!("{path}: nothing writes the block `{name}`")));
    }
    Ok(problems)
}

/// The output of `onward openapi`. Running the binary means that the other tasks need not compile the server.
fn openapi(root: &Path) -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let output = cargo.args(["run", "--quiet", "--package", "onward", "--", "openapi"]).current_dir(root).output()?;
    if !output.status.success() {
        bail!("`onward openapi` failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("the document is not UTF-8")
}

fn errors() -> String {
    let requests = api::Code::ALL
        .iter()
        .map(|code| [format!("`{}`", code.as_str()), code.status().to_string(), code.meaning().to_owned()]);
    let definitions = lang::codes::ALL.iter().map(|(code, meaning)| [format!("`{code}`"), (*meaning).to_owned()]);
    format!(
        "# Error codes\n\nWritten by `cargo xtask docs` from the code; do not edit.\n\n\
         Every error response has the shape `{{\"error\": {{code, message, hint?, at?, problems?}}}}`.\n\n\
         ## Requests\n\n{}\n\
         ## Definitions\n\nA document that cannot be parsed is answered with 400, an invalid definition with 422 and \
         every problem in it.\n\n{}",
        table(["code", "status", "meaning"], requests),
        table(["code", "meaning"], definitions)
    )
}

fn events() -> String {
    let rows = kernel::EventType::ALL.iter();
    table(["type", "meaning"], rows.map(|event| [format!("`{}`", event.as_str()), event.meaning().to_owned()]))
}

fn reasons() -> String {
    let rows = kernel::Reason::ALL.iter();
    table(["reason", "meaning"], rows.map(|reason| [format!("`{}`", reason.as_str()), reason.meaning().to_owned()]))
}

/// The types of steps in step lists.
fn types() -> String {
    let names = |fields: Vec<&str>| fields.iter().map(|field| format!("`{field}`")).collect::<Vec<_>>().join(", ");
    table(["type", "fields"], lang::list_types().map(|(word, fields)| [format!("`{word}`"), names(fields)]))
}

/// A Markdown table.
pub fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&head.map(str::to_owned));
    text.push_str(&format!("|{}\n", "---|".repeat(N)));
    rows.for_each(|cells| text.push_str(&line(&cells.map(|cell| cell.replace('|', "\\|")))));
    text
}

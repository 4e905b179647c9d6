//! `onward validate`: every problem of a definition, shown in the author's own file.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use lang::{Diagnostic, Syntax};
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    /// The file, or `-` for standard input
    file: PathBuf,
    /// Print one JSON object instead of words
    #[arg(long)]
    json: bool,
    /// How standard input is written; a file's ending says it otherwise
    #[arg(long, value_enum)]
    syntax: Option<Spelling>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Spelling {
    Json,
    Yaml,
}

const INVALID: u8 = 10;

pub fn run(arguments: Arguments) -> ExitCode {
    let name = arguments.file.display().to_string();
    let source = match read(&arguments.file) {
        Ok(source) => source,
        Err(error) => {
            eprintln!("error: cannot read {name}: {error}");
            return INVALID.into();
        }
    };
    let syntax = arguments.syntax.map_or_else(
        || guess(&arguments.file, &source),
        |s| match s {
            Spelling::Json => Syntax::Json,
            Spelling::Yaml => Syntax::Yaml,
        },
    );
    let compiled = lang::read(&source, syntax).map_err(|m| m.0).and_then(|tree| lang::compile(&tree));
    if arguments.json {
        println!("{}", as_json(&compiled));
    } else {
        match &compiled {
            Ok(compiled) => println!(
                "{name}: valid {}, {} steps, {}",
                compiled.form,
                compiled.plan.nodes().len(),
                hash(&compiled.hash)
            ),
            Err(problems) => show(&name, &String::from_utf8_lossy(&source), problems),
        }
    }
    if compiled.is_ok() { ExitCode::SUCCESS } else { INVALID.into() }
}

fn read(file: &PathBuf) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return std::fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(lang::DEFINITION_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// By the file's ending; else a document that begins like JSON is JSON.
pub fn guess(file: &std::path::Path, source: &[u8]) -> Syntax {
    match file.extension().and_then(|e| e.to_str()) {
        Some("yaml" | "yml") => Syntax::Yaml,
        Some("json") => Syntax::Json,
        _ => match source.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'{' | b'[') | None => Syntax::Json,
            Some(_) => Syntax::Yaml,
        },
    }
}

/// Every problem with its place, on standard error.
pub fn show(name: &str, source: &str, problems: &[Diagnostic]) {
    // The renderer leaves these control characters alone, and terminals obey them. A middle dot has as
    // many bytes, so that every span stays where it is.
    let source = &source.replace(|c| matches!(c, '\u{80}'..='\u{9f}'), "·");
    let renderer = if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    let mut out = std::io::stderr().lock();
    for problem in problems {
        // Bytes that are not UTF-8 are shown as something longer, so a span may end inside of it.
        let start = source.floor_char_boundary(problem.span.start);
        let span = start..source.ceil_char_boundary(problem.span.end).max(start);
        let label = if problem.path.is_empty() { "here" } else { problem.path.as_str() };
        let snippet = Snippet::source(source).path(name).annotation(AnnotationKind::Primary.span(span).label(label));
        let mut report: Vec<Group<'_>> =
            vec![Level::ERROR.primary_title(problem.message.as_str()).id(problem.code).element(snippet)];
        if let Some(hint) = &problem.hint {
            report.push(Group::with_title(Level::HELP.secondary_title(hint.as_str())));
        }
        let _ = writeln!(out, "{}\n", renderer.render(&report));
    }
    let count = problems.len();
    let _ = writeln!(out, "{name}: {count} problem{}", if count == 1 { "" } else { "s" });
}

fn as_json(compiled: &Result<lang::Compiled, Vec<Diagnostic>>) -> serde_json::Value {
    let empty = Vec::new();
    let problems = compiled.as_ref().err().unwrap_or(&empty).iter().map(problem_json);
    let ok = compiled.as_ref().ok();
    serde_json::json!({
        "valid": ok.is_some(),
        "hash": ok.map(|c| hash(&c.hash)),
        "form": ok.map(|c| c.form.as_str()),
        "steps": ok.map_or(Vec::new(), |c| c.plan.nodes().iter().map(|n| n.key.clone()).collect()),
        "problems": problems.collect::<Vec<_>>(),
    })
}

pub fn problem_json(problem: &Diagnostic) -> serde_json::Value {
    serde_json::json!({
        "code": problem.code, "message": problem.message, "hint": problem.hint,
        "at": { "path": problem.path, "line": problem.line, "column": problem.column },
    })
}

fn hash(bytes: &[u8]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

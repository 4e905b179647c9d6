//! Finding test files and the definitions they are about.

use crate::validate::guess;
use lang::suite::{Suite, World, read_suite, workflow_of};
use lang::{Compiled, Diagnostic, Tree};
use std::path::{Path, PathBuf};

const ENDINGS: [&str; 3] = [".test.yaml", ".test.yml", ".test.json"];
/// Folders that hold other people's files.
const PASSED_OVER: [&str; 2] = ["node_modules", "target"];

pub struct Loaded {
    pub path: PathBuf,
    pub tree: Tree,
    pub definition: PathBuf,
    pub compiled: Compiled,
    pub suite: Suite,
}

impl Loaded {
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Why a file has no cases that could be run.
pub enum LoadFailure {
    Words { path: PathBuf, message: String },
    Problems { path: PathBuf, source: Vec<u8>, problems: Vec<Diagnostic> },
}

/// The files given, and the test files in the folders given, in order and once each.
pub fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for path in paths {
        let kind = std::fs::metadata(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        if !kind.is_dir() {
            found.push(path.clone());
            continue;
        }
        let before = found.len();
        search(path, &mut found).map_err(|e| format!("cannot look into {}: {e}", path.display()))?;
        if found.len() == before {
            return Err(format!("there is no file named `*.test.yaml` in {}", path.display()));
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|path| seen.insert(path.clone()));
    Ok(found)
}

fn search(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    let mut entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Links to folders are not followed: they may lead in a circle.
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !PASSED_OVER.contains(&&*name) {
                search(&entry.path(), found)?;
            }
        } else if ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending)) {
            // `./a` is `a` to everybody else.
            let path = entry.path();
            found.push(path.strip_prefix(".").map(Path::to_owned).unwrap_or(path));
        }
    }
    Ok(())
}

pub fn load(path: &Path) -> Result<Loaded, LoadFailure> {
    let (source, tree) = read(path)?;
    let refused = |problems| LoadFailure::Problems { path: path.to_owned(), source: source.clone(), problems };
    let definition = definition_of(path, workflow_of(&tree).map_err(refused)?)?;
    let (text, definition_tree) = read(&definition)?;
    let mut compiled = lang::compile(&definition_tree).map_err(|problems| LoadFailure::Problems {
        path: definition.clone(),
        source: text,
        problems,
    })?;
    // A workflow that is switched off can be tested all the same, and its schedule starts no runs beside the case's.
    compiled.meta.enabled = true;
    compiled.trigger = None;
    let world = World { time: api::parse_rfc3339, keeps_header: server::keeps_header };
    let suite = read_suite(&tree, &compiled.plan, &world).map_err(refused)?;
    Ok(Loaded { path: path.to_owned(), tree, definition, compiled, suite })
}

fn read(path: &Path) -> Result<(Vec<u8>, Tree), LoadFailure> {
    let cannot =
        |e: std::io::Error| LoadFailure::Words { path: path.to_owned(), message: format!("it cannot be read: {e}") };
    let source = std::fs::read(path).map_err(cannot)?;
    match lang::read(&source, guess(path, &source)) {
        Ok(tree) => Ok((source, tree)),
        Err(malformed) => Err(LoadFailure::Problems { path: path.to_owned(), source, problems: malformed.0 }),
    }
}

/// The file that was named, else the one beside the test file: `order.yaml` for `order.test.yaml`.
fn definition_of(path: &Path, named: Option<&str>) -> Result<PathBuf, LoadFailure> {
    let words = |message: String| LoadFailure::Words { path: path.to_owned(), message };
    let folder = path.parent().unwrap_or(Path::new(""));
    if let Some(named) = named {
        return Ok(folder.join(named));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(stem) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) else {
        return Err(words("it does not say which definition it is about; add `workflow: FILE`".into()));
    };
    let beside = ["yaml", "yml", "json"].map(|ending| folder.join(format!("{stem}.{ending}")));
    let mut there = beside.into_iter().filter(|file| file.is_file());
    match (there.next(), there.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(words(format!(
            "there is no {stem}.yaml, {stem}.yml or {stem}.json beside it; say which definition it is about with `workflow: FILE`"
        ))),
        (Some(one), Some(other)) => Err(words(format!(
            "it could be about {} or {}; say which with `workflow: FILE`",
            one.display(),
            other.display()
        ))),
    }
}

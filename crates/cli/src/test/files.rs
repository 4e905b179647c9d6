//! Finds test files and the definitions that they test.

use crate::validate::guess;
use kernel::Plan;
use lang::suite::{Definitions, Suite, World, files_of, read_suite, refuse_file, workflow_of};
use lang::{Compiled, Diagnostic, Tree};
use std::path::{Path, PathBuf};

const ENDINGS: [&str; 3] = [".test.yaml", ".test.yml", ".test.json"];
/// Folders with files that are not the project's own.
const SKIPPED_FOLDERS: [&str; 2] = ["node_modules", "target"];

pub struct LoadedSuite {
    pub path: PathBuf,
    pub tree: Tree,
    pub definition: PathBuf,
    pub compiled: Compiled,
    /// Those of real children, by path as the test file writes it.
    pub definitions: Definitions,
    pub suite: Suite,
}

impl LoadedSuite {
    /// The plans of all definitions.
    pub fn plans(&self) -> impl Iterator<Item = &Plan> {
        std::iter::once(&self.compiled.plan).chain(self.definitions.values().map(|compiled| &compiled.plan))
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Why a file cannot be used.
pub enum FileFailure {
    Words { path: PathBuf, message: String },
    Problems { path: PathBuf, source: Vec<u8>, problems: Vec<Diagnostic> },
}

/// The given files, and the test files in the given folders, in order and each once.
pub fn find(paths: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for path in paths {
        let kind = std::fs::metadata(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        if !kind.is_dir() {
            found.push(path.clone());
            continue;
        }
        let before = found.len();
        search(path, &mut found).map_err(|e| format!("cannot list the folder {}: {e}", path.display()))?;
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
        // Symbolic links to folders are not followed: they may form a cycle.
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !SKIPPED_FOLDERS.contains(&&*name) {
                search(&entry.path(), found)?;
            }
        } else if ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending)) {
            // Messages and reports name files without a leading `./`.
            let path = entry.path();
            found.push(path.strip_prefix(".").map(Path::to_owned).unwrap_or(path));
        }
    }
    Ok(())
}

pub fn load(path: &Path) -> Result<LoadedSuite, FileFailure> {
    let (source, tree) = read(path)?;
    let refused = |problems| FileFailure::Problems { path: path.to_owned(), source: source.clone(), problems };
    let definition = definition_of(path, workflow_of(&tree).map_err(refused)?)?;
    let compiled = compile(&definition)?;
    let mut definitions = Definitions::new();
    for (file, span) in files_of(&tree) {
        let child = path.parent().unwrap_or(Path::new("")).join(&file);
        if !child.is_file() {
            return Err(refused(refuse_file(&tree, span, &format!("there is no file {}", child.display()))));
        }
        definitions.insert(file, compile(&child)?);
    }
    let world = World { time: api::parse_rfc3339, keeps_header: server::keeps_header };
    let suite = read_suite(&tree, &compiled.plan, &definitions, &world).map_err(refused)?;
    Ok(LoadedSuite { path: path.to_owned(), tree, definition, compiled, definitions, suite })
}

fn compile(path: &Path) -> Result<Compiled, FileFailure> {
    let (source, tree) = read(path)?;
    let failure = |problems| FileFailure::Problems { path: path.to_owned(), source, problems };
    let mut compiled = lang::compile(&tree).map_err(failure)?;
    // A disabled workflow can be tested too, and its schedule must not start runs beside the case's.
    compiled.meta.enabled = true;
    compiled.trigger = None;
    Ok(compiled)
}

fn read(path: &Path) -> Result<(Vec<u8>, Tree), FileFailure> {
    let cannot =
        |e: std::io::Error| FileFailure::Words { path: path.to_owned(), message: format!("it cannot be read: {e}") };
    let source = std::fs::read(path).map_err(cannot)?;
    match lang::read(&source, guess(path, &source)) {
        Ok(tree) => Ok((source, tree)),
        Err(malformed) => Err(FileFailure::Problems { path: path.to_owned(), source, problems: malformed.0 }),
    }
}

/// The file that `workflow` names, else the one beside the test file: `order.yaml` for `order.test.yaml`.
fn definition_of(path: &Path, named: Option<&str>) -> Result<PathBuf, FileFailure> {
    let failure = |message: String| FileFailure::Words { path: path.to_owned(), message };
    let folder = path.parent().unwrap_or(Path::new(""));
    if let Some(named) = named {
        return Ok(folder.join(named));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(stem) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) else {
        return Err(failure("it does not name the definition that it tests; add `workflow: FILE`".into()));
    };
    let candidates = ["yaml", "yml", "json"].map(|ending| folder.join(format!("{stem}.{ending}")));
    let mut existing = candidates.into_iter().filter(|file| file.is_file());
    match (existing.next(), existing.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(failure(format!(
            "there is no {stem}.yaml, {stem}.yml or {stem}.json beside it; name the definition with `workflow: FILE`"
        ))),
        (Some(one), Some(other)) => Err(failure(format!(
            "{} and {} both match its name; name one with `workflow: FILE`",
            one.display(),
            other.display()
        ))),
    }
}

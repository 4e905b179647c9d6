//! One name for one thing: a type name stands for one type in the whole product. And prose names its subject: a
//! caller, a worker, a node.
//!
//! Three kinds of types may share a name. Some are always read with their module (`store::Error`, `bench::Arguments`).
//! A type of `api` is the wire shape of the engine's type of that name. The two databases have twin files.

use std::collections::BTreeMap;

/// TypeNames that are read with their module, as the standard library does it.
const QUALIFIED: &[&str] = &[
    "Arguments",
    "Case",
    "Code",
    "Command",
    "Error",
    "Failure",
    "Inner",
    "Kind",
    "Options",
    "Problem",
    "Reply",
    "State",
    "Tasks",
    "Value",
    "Verb",
];

/// Words that leave open who acts.
const VAGUE: &[&str] = &["whoever", "whomever", "somebody", "nobody", "anybody"];

/// Where prose is not ours to change: migrations are hashed, accepted decisions are not edited, the rest is generated,
/// or lists the words.
const AS_IT_IS: &[&str] = &[
    "crates/store/migrations/",
    "docs/adr/",
    "docs/reference/openapi.json",
    "ui/vendor/",
    "crates/xtask/src/names.rs",
];

/// Where a type is defined.
#[derive(Default)]
pub struct TypeNames(BTreeMap<String, Vec<String>>);

impl TypeNames {
    /// Notes the types a file defines, up to its tests.
    pub fn collect(&mut self, path: &str, text: &str) {
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in product.lines() {
            let code = line.trim_start().trim_start_matches("pub ");
            let code = match code.strip_prefix("pub(") {
                Some(rest) => rest.split_once(") ").map_or("", |(_, code)| code),
                None => code,
            };
            let defined = ["struct ", "enum ", "trait "].iter().find_map(|keyword| code.strip_prefix(keyword));
            let name: String = defined.unwrap_or_default().chars().take_while(|c| c.is_alphanumeric()).collect();
            if !name.is_empty() {
                self.define(name, path);
            }
        }
    }

    fn define(&mut self, name: String, path: &str) {
        let paths = self.0.entry(name).or_default();
        let twin = path.replace("/postgres/", "/sqlite/").replace("/postgres.rs", "/sqlite.rs");
        if !path.starts_with("crates/api/") && !paths.contains(&twin) {
            paths.push(twin);
        }
    }

    pub fn problems(&self) -> Vec<String> {
        let is_shared =
            |(name, paths): &(&String, &Vec<String>)| paths.len() > 1 && !QUALIFIED.contains(&name.as_str());
        let said = |(name, paths): (&String, &Vec<String>)| {
            format!("`{name}` is {} types: {}; rename all but one", paths.len(), paths.join(", "))
        };
        self.0.iter().filter(is_shared).map(said).collect()
    }
}

/// Lines of a file that use a vague word. `"nobody"` in quotes is the user of that name.
pub fn vague_lines(path: &str, text: &str) -> Vec<String> {
    if AS_IT_IS.iter().any(|prefix| path.starts_with(prefix)) {
        return Vec::new();
    }
    let is_vague = |line: &str| {
        let line = line.replace("\"nobody\"", "");
        let mut words = line.split(|c: char| !c.is_ascii_alphabetic());
        words.find_map(|word| VAGUE.iter().copied().find(|vague| word.eq_ignore_ascii_case(vague)))
    };
    let said = |(i, line): (usize, &str)| {
        is_vague(line).map(|word| format!("{path}:{}: `{word}`: name the caller, worker, node or operator", i + 1))
    };
    text.lines().enumerate().filter_map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_means_two_types_is_found() {
        let mut names = TypeNames::default();
        names.collect("a.rs", "pub(super) struct Line {\nenum Error {\n#[cfg(test)]\nstruct Fixture;");
        names.collect("b.rs", "    struct Line(u8);\npub enum Error {\nstruct Fixture;\n// struct Other");
        assert_eq!(names.problems(), ["`Line` is 2 types: a.rs, b.rs; rename all but one"]);
    }

    #[test]
    fn wire_shapes_and_twins_may_share_a_name() {
        let mut names = TypeNames::default();
        names.collect("crates/api/src/tasks.rs", "pub struct ClaimRequest {");
        names.collect("crates/engine/src/claims.rs", "pub struct ClaimRequest {");
        names.collect("crates/store/src/sqlite/catalog.rs", "struct Rows(u8);");
        names.collect("crates/store/src/postgres/catalog.rs", "struct Rows(u8);");
        names.collect("crates/store/src/postgres/lists.rs", "struct Page(u8);");
        names.collect("crates/store/src/sqlite/journal.rs", "struct Page(u8);");
        assert_eq!(names.problems().len(), 1, "{:?}", names.problems());
    }

    #[test]
    fn vague_words_are_found_whole_and_in_any_case() {
        let found =
            vague_lines("a.md", "Somebody asks.\nthe nobodyish\n// nobody_else is a word of its own\nas \"nobody\"");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(vague_lines("docs/adr/0015.md", "nobody").is_empty());
        assert!(found[0].starts_with("a.md:1: `somebody`"));
    }
}

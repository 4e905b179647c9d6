//! One name for one thing: a type name stands for one type in the whole product, unless its module says which one is
//! meant (`store::Error`, `bench::Arguments`). And prose names its subject: a caller, a worker, a node.

use std::collections::BTreeMap;

/// Names that are read with their module, as the standard library does it.
const QUALIFIED: &[&str] = &[
    "Arguments", "Case", "Code", "Command", "Context", "Cursor", "Data", "Error", "Failure", "Inner", "Key", "Kind",
    "Options", "Owners", "Problem", "Rejection", "Reply", "Result", "State", "Tally", "Value", "Verb",
];

/// Words that leave open who acts.
const VAGUE: &[&str] = &["whoever", "whomever", "somebody", "nobody", "anybody"];

/// Where a type is defined.
#[derive(Default)]
pub struct Names(BTreeMap<String, Vec<String>>);

impl Names {
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
                self.0.entry(name).or_default().push(path.to_owned());
            }
        }
    }

    pub fn problems(&self) -> Vec<String> {
        let is_shared = |(name, paths): &(&String, &Vec<String>)| paths.len() > 1 && !QUALIFIED.contains(&name.as_str());
        let said = |(name, paths): (&String, &Vec<String>)| {
            format!("`{name}` is {} types: {}; rename all but one", paths.len(), paths.join(", "))
        };
        self.0.iter().filter(is_shared).map(said).collect()
    }
}

/// Lines of a file that use a vague word.
pub fn vague_lines(path: &str, text: &str) -> Vec<String> {
    let is_vague = |line: &str| {
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
        let mut names = Names::default();
        names.collect("a.rs", "pub(super) struct Line {\nenum Error {\n#[cfg(test)]\nstruct Fixture;");
        names.collect("b.rs", "    struct Line(u8);\npub enum Error {\nstruct Fixture;\n// struct Other");
        assert_eq!(names.problems(), ["`Line` is 2 types: a.rs, b.rs; rename all but one"]);
    }

    #[test]
    fn vague_words_are_found_whole_and_in_any_case() {
        let found = vague_lines("a.md", "Somebody asks.\nthe nobodyish\n// nobody_else is a word of its own");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a.md:1: `somebody`"));
    }
}

//! The list of features as Markdown: a short one for the README, the full one for `docs/status.md`.

use crate::docs::table;
use api::features::{ALL, Feature, State};

/// For the README.
pub fn short() -> String {
    let rows = |state| rows(state, "docs/", |feature| feature.what.to_owned());
    format!(
        "Works:\n\n{}\nNot built yet:\n\n{}",
        table(["", ""], rows(State::Works)),
        table(["", ""], rows(State::Planned))
    )
}

/// For `docs/status.md`.
pub fn full() -> String {
    let rows = |state| {
        rows(state, "", |feature| match feature.details {
            "" => feature.what.to_owned(),
            details => format!("{}; {details}", feature.what),
        })
    };
    format!(
        "## What works\n\n{}\n## Not built yet\n\n{}",
        table(["area", "what works"], rows(State::Works)),
        table(["area", "what is missing"], rows(State::Planned))
    )
}

/// The features in one state; `docs` is the relative path from the page to `docs/`.
fn rows(state: State, docs: &str, text: fn(&Feature) -> String) -> impl Iterator<Item = [String; 2]> {
    ALL.iter().filter(move |feature| feature.state == state).map(move |feature| {
        let area = match feature.page {
            Some(page) => format!("[{}]({docs}{page})", feature.area),
            None => feature.area.to_owned(),
        };
        [area, text(feature)]
    })
}

#[cfg(test)]
mod tests {
    use api::features::{FIELDS, FORMS, SDKS, STEP_KINDS, State, names};
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn step_kinds_that_work_are_accepted_and_planned_ones_are_refused() {
        assert_eq!(names(STEP_KINDS, State::Works), lang::kinds().collect());
        assert_eq!(names(STEP_KINDS, State::Planned), lang::LATER_KINDS.iter().copied().collect());
    }

    #[test]
    fn forms_that_work_are_accepted_and_planned_ones_are_refused() {
        assert_eq!(names(FORMS, State::Works), BTreeSet::from(["steps", "tasks"]));
        assert_eq!(codes("name: a\nsteps: [{type: noop}]"), BTreeSet::new());
        assert_eq!(codes("name: a\ntasks: {a: {noop: {}}}"), BTreeSet::new());
        assert_eq!(names(FORMS, State::Planned), lang::OTHER_FORMS.iter().map(|(field, _)| *field).collect());
        for form in names(FORMS, State::Planned) {
            assert!(codes(&format!("name: a\n{form}: []")).contains("unsupported_form"), "{form}");
        }
    }

    #[test]
    fn planned_fields_are_refused() {
        for field in names(FIELDS, State::Planned) {
            let of_workflow = codes(&format!("name: a\n{field}: {{}}\ntasks: {{a: {{noop: {{}}}}}}"));
            assert_eq!(of_workflow, BTreeSet::from(["unsupported_setting".into()]), "{field}");
        }
    }

    #[test]
    fn sdks_that_work_exist_and_planned_ones_do_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (state, exists) in [(State::Works, true), (State::Planned, false)] {
            for folder in names(SDKS, state) {
                assert_eq!(root.join(folder).exists(), exists, "{folder}");
            }
        }
        let entries = std::fs::read_dir(root.join("sdks")).unwrap().map(Result::unwrap);
        for entry in entries.filter(|entry| entry.path().is_dir()) {
            let folder = format!("sdks/{}", entry.file_name().to_string_lossy());
            assert!(names(SDKS, State::Works).contains(folder.as_str()), "{folder} is not listed");
        }
    }

    /// The codes of a definition's problems.
    fn codes(definition: &str) -> BTreeSet<String> {
        let tree = lang::read(definition.as_bytes(), lang::Syntax::Yaml).unwrap();
        let problems = lang::compile(&tree).err().unwrap_or_default();
        problems.iter().map(|problem| problem.code.to_string()).collect()
    }
}

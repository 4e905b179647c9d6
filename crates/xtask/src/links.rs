//! Checks the links between documents: the file must exist, and so must the heading.

use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// The broken links in the Markdown files of the root folder and below `docs/`.
pub fn problems(root: &Path) -> Result<Vec<String>> {
    let pages = pages(root)?;
    let mut problems = Vec::new();
    for (path, text) in &pages {
        for link in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let exists = match pages.get(&target) {
                Some(page) => anchor.is_empty() || anchors(page).any(|found| found == anchor),
                None => anchor.is_empty() && root.join(&target).exists(),
            };
            if !exists {
                problems.push(format!("{}: the link `{link}` is broken", path.display()));
            }
        }
    }
    Ok(problems)
}

/// The Markdown files of the root folder and below `docs/`, by their path below `root`.
pub fn pages(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    collect(root, root, &mut pages)?;
    collect(root, &root.join("docs"), &mut pages)?;
    Ok(pages)
}

/// Collects the pages in `folder`, by their path below `root`. Recurses, except from the root itself.
fn collect(root: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && folder != root {
            collect(root, &path, pages)?;
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.insert(path.strip_prefix(root)?.to_owned(), std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// The target of a relative link `file` on the page at `path`.
fn resolve(path: &Path, file: &str) -> PathBuf {
    let mut target = path.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => _ = target.pop(),
            Component::CurDir => {}
            part => target.push(part),
        }
    }
    target
}

/// The text outside of code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of `[…](…)`, except links to other sites.
fn links(page: &str) -> impl Iterator<Item = &str> {
    prose(page)
        .flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link))
        .filter(|link| !link.contains("://"))
}

/// The anchors of the headings: lower-case letters, digits, `-` and `_`, with `-` for a space.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    prose(page).filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings_are_found_outside_of_code() {
        let page = "# One, two\n[a](b.md#c) and [d](https://e)\n```sh\n# no\n[x](y)\n```\n## 1. `Build` it\n";
        assert_eq!(links(page).collect::<Vec<_>>(), ["b.md#c"]);
        assert_eq!(anchors(page).collect::<Vec<_>>(), ["one-two", "1-build-it"]);
        assert_eq!(resolve(Path::new("docs/guides/a.md"), "../../README.md"), Path::new("README.md"));
    }
}

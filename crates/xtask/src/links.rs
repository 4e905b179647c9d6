//! Every link between the documents leads somewhere: the file is there, and the heading too.

use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// What is wrong with the links of `README.md`, its neighbours, and everything below `docs/`.
pub fn problems(root: &Path) -> Result<Vec<String>> {
    let pages = pages(root)?;
    let mut problems = Vec::new();
    for (path, text) in &pages {
        for link in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { beside(path, file) };
            let is_there = match pages.get(&target) {
                Some(page) => anchor.is_empty() || anchors(page).any(|found| found == anchor),
                None => anchor.is_empty() && root.join(&target).exists(),
            };
            if !is_there {
                problems.push(format!("{}: `{link}` leads nowhere", path.display()));
            }
        }
    }
    Ok(problems)
}

/// `README.md`, its neighbours, and everything below `docs/`, by their path below `root`.
pub fn pages(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut pages = BTreeMap::new();
    collect(root, root, &mut pages)?;
    collect(root, &root.join("docs"), &mut pages)?;
    Ok(pages)
}

/// The pages in `folder`, by their path below `root`; also in folders below it, but not from the root itself.
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

/// What `file` means in a link of the page at `path`.
fn beside(path: &Path, file: &str) -> PathBuf {
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

/// Where `[…](…)` leads, but for other sites.
fn links(page: &str) -> impl Iterator<Item = &str> {
    prose(page)
        .flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link))
        .filter(|link| !link.contains("://"))
}

/// The names that headings can be reached by: small letters, digits, `-` and `_`, with `-` for a space.
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
        assert_eq!(beside(Path::new("docs/guides/a.md"), "../../README.md"), Path::new("README.md"));
    }
}

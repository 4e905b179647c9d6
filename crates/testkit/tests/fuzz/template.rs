//! Any text as a template, filled in with any value (the text behind the first NUL). There is never a panic, a value is
//! never read as a template, the literal start of a URL never changes, and a header never contains a line break.

use kernel::path::{Problem, RawPath, Ref, Root};
use kernel::scope::{Scope, Unresolved};
use kernel::template::{self, Template};
use kernel::wire::Message;
use std::borrow::Cow;

struct Filling<'a>(&'a str);

impl Scope for Filling<'_> {
    fn get(&self, _: &Ref) -> Result<Option<Cow<'_, serde_json::Value>>, Unresolved> {
        Ok(Some(Cow::Owned(self.0.into())))
    }
}

fn resolve(raw: &RawPath<'_>) -> Result<Ref, Problem> {
    Ok(Ref { root: Root::TriggerBody, text: raw.text.to_owned(), ..Default::default() })
}

pub fn check(bytes: &[u8]) {
    let input = &*String::from_utf8_lossy(bytes);
    let (text, filling) = input.split_once('\0').unwrap_or((input, "{{trigger.body}}"));
    let parts = match template::parse_text(text, &mut resolve) {
        Ok(parts) => parts,
        Err(problems) => return assert!(problems.iter().all(|p| p.at <= text.len()), "{problems:?}"),
    };
    let scope = Filling(filling);
    let whole: String = parts.iter().map(|p| if p.path.is_some() { filling } else { p.text.as_str() }).collect();
    if let Ok(rendered) = template::render_text(&parts, &scope) {
        assert_eq!(rendered, whole, "placeholders are filled in once");
    }
    if let Ok(header) = template::render_header("x", &parts, &scope) {
        assert!(!header.contains(['\r', '\n', '\0']));
    }
    if let Ok(url) = template::render_url(&parts, &scope) {
        let literal = parts.first().filter(|p| p.path.is_none()).map_or("", |p| p.text.as_str());
        assert!(url.starts_with(literal));
    }
    let stored = Template::from_parts(parts);
    assert_eq!(Template::decode(&stored.encode()), Ok(stored));
}

//! Any text as an expression. A problem has a position inside the text. A parsed expression survives encoding and
//! decoding, and both copies evaluate to the same result.

use kernel::expr::{self, Expr};
use kernel::path::{Problem, RawPath, Ref, Root};
use kernel::scope::{Scope, Unresolved};
use kernel::wire::Message;
use std::borrow::Cow;

struct Anything;

impl Scope for Anything {
    fn get(&self, path: &Ref) -> Result<Option<Cow<'_, serde_json::Value>>, Unresolved> {
        Ok(match path.keys.len() % 5 {
            0 => None,
            1 => Some(Cow::Owned(7.into())),
            2 => Some(Cow::Owned("7".into())),
            3 => Some(Cow::Owned(vec![1, 2].into())),
            _ => Some(Cow::Owned(serde_json::Value::Null)),
        })
    }
}

fn resolve(raw: &RawPath<'_>) -> Result<Ref, Problem> {
    let keys = raw.segments.iter().map(|s| s.name.clone()).collect();
    Ok(Ref { root: Root::TriggerBody, keys, text: raw.text.to_owned(), ..Default::default() })
}

pub fn check(bytes: &[u8]) {
    let text = &*String::from_utf8_lossy(bytes);
    match expr::parse(text, &mut resolve) {
        Err(problems) => assert!(problems.iter().all(|p| p.at <= text.len()), "{problems:?}"),
        Ok(parsed) => {
            let again = Expr::decode(&parsed.encode()).expect("an expression decodes");
            let (mut seen, mut seen_again) = (Vec::new(), Vec::new());
            let first = expr::truth(&parsed, &Anything, &mut seen).expect("everything resolves");
            let second = expr::truth(&again, &Anything, &mut seen_again).expect("everything resolves");
            assert_eq!((first, seen), (second, seen_again));
        }
    }
}

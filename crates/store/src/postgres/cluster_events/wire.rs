//! How news travel: text of less than 8000 bytes, which is all that `NOTIFY` takes.
//!
//! ```text
//!   1 00c0ffee00c0ffee P1;4:mail5:eu/42M1;018f…W
//!   │ │                └ things, one after another
//!   │ └ who says so
//!   └ of this encoding
//! ```
//!
//! | letter | then | |
//! |---|---|---|
//! | `P` | organisation `;` type, key | [`ClusterEvent::TaskReady`] |
//! | `M` | organisation `;` run, 32 hex digits | [`ClusterEvent::RunAdvanced`] |
//! | `T` | organisation `;` type | [`ClusterEvent::TypeChanged`] |
//! | `W` | | [`ClusterEvent::PausesChanged`] |
//! | `G` | | [`ClusterEvent::GroupsChanged`] |
//! | `N` | | [`ClusterEvent::NodesChanged`] |
//! | `X` | | [`ClusterEvent::Missed`] |
//!
//! A name is its length in bytes, `:` and itself. What a reader does not understand, it takes for something it missed.

use crate::rows::{ClusterEvent, QueueKey};
use kernel::{OrgId, RunId};
use std::collections::BTreeSet;
use std::fmt::Write;

const ENCODING: &str = "1 ";
/// Bytes of one message.
const MESSAGE_MAX: usize = 7_900;
/// Bytes of one thing: longer ones are only said to be there.
const THING_MAX: usize = 2_000;

/// As few messages as will do.
pub(super) fn write(own: u64, news: &BTreeSet<ClusterEvent>) -> Vec<String> {
    let head = format!("{ENCODING}{own:016x} ");
    let mut messages = vec![head.clone()];
    let things: BTreeSet<String> = news.iter().map(thing).collect();
    for thing in things {
        if messages.last().is_some_and(|last| last.len() + thing.len() > MESSAGE_MAX) {
            messages.push(head.clone());
        }
        if let Some(last) = messages.last_mut() {
            last.push_str(&thing);
        }
    }
    messages
}

fn thing(news: &ClusterEvent) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match news {
        ClusterEvent::TaskReady(QueueKey { org, name, key }) => {
            write!(text, "P{};{}:{name}{}:{key}", org.0, name.len(), key.len())
        }
        ClusterEvent::RunAdvanced(org, run) => write!(text, "M{};{:032x}", org.0, u128::from_be_bytes(run.0)),
        ClusterEvent::TypeChanged(org, name) => write!(text, "T{};{}:{name}", org.0, name.len()),
        ClusterEvent::PausesChanged => write!(text, "W"),
        ClusterEvent::GroupsChanged => write!(text, "G"),
        ClusterEvent::NodesChanged => write!(text, "N"),
        ClusterEvent::Missed => write!(text, "X"),
    };
    // Postgres has no text with a zero in it.
    if text.len() > THING_MAX || text.contains('\0') { "X".into() } else { text }
}

/// Who said it, and what. Nothing if it makes no sense.
pub(super) fn read(message: &str) -> Option<(u64, Vec<ClusterEvent>)> {
    let (own, mut rest) = message.strip_prefix(ENCODING)?.split_once(' ')?;
    let own = u64::from_str_radix(own, 16).ok()?;
    let mut news = Vec::new();
    while !rest.is_empty() {
        let (letter, after) = rest.split_at_checked(1)?;
        rest = after;
        news.push(match letter {
            "P" => {
                let org = org(&mut rest)?;
                ClusterEvent::TaskReady(QueueKey { org, name: name(&mut rest)?, key: name(&mut rest)? })
            }
            "M" => {
                let org = org(&mut rest)?;
                let (run, after) = rest.split_at_checked(32)?;
                rest = after;
                ClusterEvent::RunAdvanced(org, RunId(u128::from_str_radix(run, 16).ok()?.to_be_bytes()))
            }
            "T" => ClusterEvent::TypeChanged(org(&mut rest)?, name(&mut rest)?),
            "W" => ClusterEvent::PausesChanged,
            "G" => ClusterEvent::GroupsChanged,
            "N" => ClusterEvent::NodesChanged,
            "X" => ClusterEvent::Missed,
            _ => return None,
        });
    }
    Some((own, news))
}

fn org(rest: &mut &str) -> Option<OrgId> {
    let (number, after) = rest.split_once(';')?;
    *rest = after;
    number.parse().ok().map(OrgId)
}

fn name(rest: &mut &str) -> Option<String> {
    let (length, after) = rest.split_once(':')?;
    let (name, after) = after.split_at_checked(length.parse().ok()?)?;
    *rest = after;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(name: &str, key: &str) -> ClusterEvent {
        ClusterEvent::TaskReady(QueueKey { org: OrgId(1), name: name.into(), key: key.into() })
    }

    fn all() -> Vec<ClusterEvent> {
        let run = RunId([0x5a; 16]);
        vec![
            posted("mail.send", "eu/42"),
            posted("mail.send", ""),
            posted("5:x", "a;b:c P1; 日本\n\u{1f600}"),
            ClusterEvent::RunAdvanced(OrgId(u32::MAX), run),
            ClusterEvent::TypeChanged(OrgId(7), "mail".into()),
            ClusterEvent::PausesChanged,
            ClusterEvent::GroupsChanged,
            ClusterEvent::NodesChanged,
            ClusterEvent::Missed,
        ]
    }

    #[test]
    fn news_travel_as_they_always_did() {
        let some = [
            posted("mail", "eu/42"),
            ClusterEvent::RunAdvanced(OrgId(1), RunId([0x5a; 16])),
            ClusterEvent::PausesChanged,
        ];
        let expected = format!("1 00c0ffee00c0ffee M1;{}P1;4:mail5:eu/42W", "5a".repeat(16));
        assert_eq!(write(0x00c0_ffee_00c0_ffee, &some.into()), [expected]);
        let rest = [
            ClusterEvent::TypeChanged(OrgId(2), "a.b".into()),
            ClusterEvent::GroupsChanged,
            ClusterEvent::NodesChanged,
            ClusterEvent::Missed,
        ];
        assert_eq!(write(1, &rest.into()), ["1 0000000000000001 GNT2;3:a.bX"]);
    }

    #[test]
    fn what_is_written_is_read() {
        let sent: BTreeSet<ClusterEvent> = all().into_iter().collect();
        assert_eq!(sent.len(), all().len());
        let messages = write(9, &sent);
        let heard: BTreeSet<ClusterEvent> = messages.iter().flat_map(|m| read(m).expect("it is ours").1).collect();
        assert_eq!((messages.len(), heard), (1, sent));
    }

    #[test]
    fn no_message_is_too_long_and_long_names_are_only_missed() {
        let many: BTreeSet<ClusterEvent> =
            (0..1_000u128).map(|n| ClusterEvent::RunAdvanced(OrgId(1), RunId(n.to_be_bytes()))).collect();
        let messages = write(9, &many);
        assert!(messages.len() > 3 && messages.iter().all(|message| message.len() < 8_000));
        let heard: BTreeSet<ClusterEvent> = messages.iter().flat_map(|m| read(m).expect("it is ours").1).collect();
        assert_eq!(heard, many);
        for long in [posted("mail", &"k".repeat(THING_MAX)), posted("mail", "a\0b")] {
            assert_eq!(read(&write(9, &BTreeSet::from([long]))[0]), Some((9, vec![ClusterEvent::Missed])));
        }
    }

    #[test]
    fn what_is_not_understood_is_nothing() {
        for text in
            ["", "2 09 W", "1 zz W", "1 09", "1 09 Q", "1 09 T1;9:ab", "1 09 M1;5a", "1 09 P;1:a1:b", "1 09 T1;1:日"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("1 09 "), Some((9, vec![])));
    }
}

//! Any text as a schedule. A problem has a position inside the text. A schedule fires later than it is asked about, or
//! never again.

use kernel::Timestamp;
use lang::cron::{Cron, Zone};

pub fn check(bytes: &[u8]) {
    let text = &*String::from_utf8_lossy(bytes);
    match Cron::parse(text) {
        Err(problems) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|p| p.at + p.len <= text.len()), "{problems:?}");
        }
        Ok(cron) => {
            let (zone, from) = (Zone::get("Europe/Berlin").expect("a zone"), Timestamp(1_900_000_000_000_000));
            let next = cron.next_after(from, &zone).expect("an impossible schedule is refused");
            assert!(next > from);
        }
    }
}

//! Did you mean …? The nearest of the names that would have been right.
//!
//! Distance counts inserted, dropped, changed and swapped characters. Only a narrow band of the table
//! is computed, so a comparison costs a few operations per character however long the names are.

/// Beyond this distance two names are different names, not a typo.
const DISTANCE_MAX: usize = 2;
/// Longer names get no suggestion: no name of ours is that long.
const LEN_MAX: usize = 100;

/// The nearest candidate, the first one of equals; none when nothing is near.
pub(crate) fn nearest<'c>(wrong: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let wrong: Vec<char> = wrong.chars().take(LEN_MAX + 1).flat_map(char::to_lowercase).collect();
    if wrong.len() > LEN_MAX {
        return None;
    }
    let limit = DISTANCE_MAX.min(wrong.len().div_ceil(3));
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let chars: Vec<char> = candidate.chars().take(LEN_MAX + 1).flat_map(char::to_lowercase).collect();
        let Some(d) = distance(&wrong, &chars, limit) else { continue };
        if best.is_none_or(|(least, _)| d < least) {
            best = Some((d, candidate));
        }
    }
    best.map(|(_, name)| name)
}

/// The hint people see.
pub(crate) fn hint<'c>(wrong: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    nearest(wrong, candidates).map(|name| format!("did you mean `{name}`?"))
}

/// Edit distance with adjacent swaps, or `None` when it is larger than `limit`.
fn distance(a: &[char], b: &[char], limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    const FAR: usize = usize::MAX / 2;
    let mut before = vec![FAR; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).map(|j| if j <= limit { j } else { FAR }).collect();
    for i in 1..=a.len() {
        let mut row = vec![FAR; b.len() + 1];
        if i <= limit {
            row[0] = i;
        }
        for j in i.saturating_sub(limit).max(1)..=(i + limit).min(b.len()) {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut d = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                d = d.min(before[j - 2] + 1);
            }
            row[j] = d;
        }
        before = std::mem::replace(&mut last, row);
    }
    Some(last[b.len()]).filter(|d| *d <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_find_their_word_and_other_words_do_not() {
        let names = ["charge", "receipt", "ship", "needs"];
        for (wrong, found) in [
            ("chrage", Some("charge")),
            ("Charge", Some("charge")),
            ("recipt", Some("receipt")),
            ("need", Some("needs")),
            ("shp", Some("ship")),
            ("sh", None),
            ("refund", None),
            ("", None),
        ] {
            assert_eq!(nearest(wrong, names), found, "{wrong}");
        }
        assert_eq!(nearest(&"x".repeat(1_000_000), names), None);
    }
}

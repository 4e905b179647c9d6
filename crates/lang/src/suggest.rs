//! "Did you mean …?": the valid name that is nearest to a misspelt one.
//!
//! The edit distance counts inserted, dropped, changed and swapped characters. Only a narrow band of the table is
//! computed, so a comparison costs a few operations per character.

/// The largest distance that counts as a typo.
const DISTANCE_MAX: usize = 2;
/// Longer names get no suggestion, because no valid name is that long.
const LEN_MAX: usize = 100;

/// The nearest candidate (the first of several at the same distance), if any is near enough.
pub fn nearest<'c>(wrong: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
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

/// The hint for a diagnostic.
pub(crate) fn hint<'c>(wrong: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    nearest(wrong, candidates).map(|name| format!("did you mean `{name}`?"))
}

/// Edit distance with adjacent swaps, or `None` when it is larger than `limit`. Row `i` of the table is only needed
/// from `i - limit` to `i + limit`; the cells next to that band hold a large distance.
fn distance(a: &[char], b: &[char], limit: usize) -> Option<usize> {
    const FAR: usize = usize::MAX / 2;
    if a.len().abs_diff(b.len()) > limit {
        return None;
    }
    let mut before = vec![FAR; b.len() + 2];
    let mut last: Vec<usize> = (0..b.len() + 2).map(|j| if j <= limit { j } else { FAR }).collect();
    let mut row = before.clone();
    for i in 1..=a.len() {
        let (from, to) = (i.saturating_sub(limit).max(1), (i + limit).min(b.len()));
        row[from - 1] = if from == 1 && i <= limit { i } else { FAR };
        let mut least = row[from - 1];
        for j in from..=to {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut d = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                d = d.min(before[j - 2] + 1);
            }
            row[j] = d;
            least = least.min(d);
        }
        row[to + 1] = FAR;
        // A swap uses the row before the last, so one row over the limit is not enough to stop.
        if least > limit + 1 {
            return None;
        }
        std::mem::swap(&mut before, &mut last);
        std::mem::swap(&mut last, &mut row);
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

    /// The textbook algorithm with the whole table.
    fn whole_table_distance(a: &[char], b: &[char]) -> usize {
        let mut d = vec![vec![0; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                d[i][j] = match (i, j) {
                    (0, n) | (n, 0) => n,
                    _ => {
                        let change = d[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                        let swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                        let best = change.min(d[i - 1][j] + 1).min(d[i][j - 1] + 1);
                        if swap { best.min(d[i - 2][j - 2] + 1) } else { best }
                    }
                };
            }
        }
        d[a.len()][b.len()]
    }

    #[test]
    fn the_narrow_band_finds_what_the_whole_table_does() {
        let words: Vec<Vec<char>> = (0..243u32)
            .map(|n| (0..5).map(|i| ['a', 'b', 'c'][(n / 3u32.pow(i) % 3) as usize]).collect())
            .flat_map(|word: Vec<char>| [word[..3].to_vec(), word[..4].to_vec(), word])
            .collect();
        for (a, b) in words.iter().step_by(7).flat_map(|a| words.iter().map(move |b| (a, b))) {
            for limit in 0..=2 {
                let expected = Some(whole_table_distance(a, b)).filter(|d| *d <= limit);
                assert_eq!(distance(a, b, limit), expected, "{a:?} {b:?} {limit}");
            }
        }
    }
}

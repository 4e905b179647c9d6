//! What is kept of an output stream: its first characters, in constant memory, however much is written.

/// Characters kept of each stream.
pub const OUTPUT_CHARS_MAX: usize = 65_536;

/// Ends a text that was cut; not counted in [`OUTPUT_CHARS_MAX`].
pub const TRUNCATION_MARKER: &str = "\n[output truncated]";

/// No character is longer than four bytes, and a byte that is not UTF-8 becomes a character. So these bytes always hold
/// as many characters as are kept.
const BYTES_MAX: usize = 4 * OUTPUT_CHARS_MAX;

#[derive(Default)]
pub struct OutputHead {
    bytes: Vec<u8>,
    is_full: bool,
}

impl OutputHead {
    pub fn push(&mut self, chunk: &[u8]) {
        let room = BYTES_MAX - self.bytes.len();
        self.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        self.is_full |= chunk.len() > room;
    }

    /// The text, and whether it was cut.
    pub fn finish(self) -> (String, bool) {
        let mut text = String::from_utf8_lossy(&self.bytes).into_owned();
        let end = text.char_indices().nth(OUTPUT_CHARS_MAX).map(|(at, _)| at);
        if end.is_none() && !self.is_full {
            return (text, false);
        }
        text.truncate(end.unwrap_or(text.len()));
        text.push_str(TRUNCATION_MARKER);
        (text, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(chunks: impl IntoIterator<Item = Vec<u8>>) -> (usize, bool) {
        let mut head = OutputHead::default();
        chunks.into_iter().for_each(|chunk| head.push(&chunk));
        assert!(head.bytes.len() <= BYTES_MAX);
        let (text, is_cut) = head.finish();
        assert_eq!(text.ends_with(TRUNCATION_MARKER), is_cut);
        (text.chars().count() - if is_cut { TRUNCATION_MARKER.len() } else { 0 }, is_cut)
    }

    #[test]
    fn exactly_the_allowed_characters_are_kept_whatever_their_length() {
        for character in ["a", "ä", "€", "😀"] {
            let text = |n: usize| character.repeat(n).into_bytes();
            assert_eq!(kept([text(OUTPUT_CHARS_MAX)]), (OUTPUT_CHARS_MAX, false), "{character}");
            assert_eq!(kept([text(OUTPUT_CHARS_MAX + 1)]), (OUTPUT_CHARS_MAX, true), "{character}");
            // Byte by byte, so that chunks end inside of characters.
            let bytes = text(OUTPUT_CHARS_MAX + 9).into_iter().map(|byte| vec![byte]);
            assert_eq!(kept(bytes), (OUTPUT_CHARS_MAX, true), "{character}");
        }
        assert_eq!(kept([vec![0xff; OUTPUT_CHARS_MAX]]), (OUTPUT_CHARS_MAX, false));
        assert_eq!(kept(std::iter::repeat_n(vec![0xff; 1 << 16], 99)), (OUTPUT_CHARS_MAX, true));
        assert_eq!(kept([]), (0, false));
    }
}

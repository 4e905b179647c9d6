//! Turns the line and column of a serde error into the path of a field, which is what people need.

enum Nesting {
    Object { key: String, is_key: bool },
    List { index: usize },
}

/// The path of the value that ends at, or contains, this position (line and column from 1) of a well-formed JSON text.
pub fn of(text: &str, line: usize, column: usize) -> String {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    let end = (before + column).min(text.len());
    let bytes = text.as_bytes();
    let mut levels: Vec<Nesting> = Vec::new();
    let mut at = 0;
    while at < end {
        match bytes[at] {
            b'{' => levels.push(Nesting::Object { key: String::new(), is_key: true }),
            b'[' => levels.push(Nesting::List { index: 0 }),
            // An error at a closing bracket is about the object or list itself: it lacks something.
            b'}' | b']' if at + 1 < end => _ = levels.pop(),
            b'}' | b']' => {
                if let Some(Nesting::Object { key, .. }) = levels.last_mut() {
                    key.clear();
                }
            }
            b',' => match levels.last_mut() {
                Some(Nesting::Object { is_key, .. }) => *is_key = true,
                Some(Nesting::List { index }) => *index += 1,
                None => {}
            },
            b'"' => {
                let from = at;
                at += 1;
                while at < bytes.len() && bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if let Some(Nesting::Object { key, is_key }) = levels.last_mut()
                    && std::mem::take(is_key)
                {
                    let quoted = text.get(from..=at).unwrap_or_default();
                    *key = serde_json::from_str(quoted).unwrap_or_default();
                }
            }
            _ => {}
        }
        at += 1;
    }
    path(&levels)
}

fn path(levels: &[Nesting]) -> String {
    let mut path = String::new();
    for level in levels {
        match level {
            Nesting::List { index } => path.push_str(&format!("[{index}]")),
            Nesting::Object { key, .. } if key.is_empty() => {}
            Nesting::Object { key, .. } => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_turned_into_a_path() {
        let text = r#"{"a": {"b,}": [1, {"c\"": tr}]}, "d": 2}"#;
        for (mark, expected) in [("1,", "a.b,}[0]"), ("tr}", "a.b,}[1].c\""), ("2}", "d"), ("{\"a", "")] {
            let column = text.find(mark).unwrap() + 1;
            assert_eq!(of(text, 1, column), expected, "{mark}");
        }
        assert_eq!(of("[\n 1,\n  x]", 3, 3), "[1]");
        assert_eq!(of("7", 1, 1), "");
        assert_eq!(of("{}", 9, 9), "");
    }
}

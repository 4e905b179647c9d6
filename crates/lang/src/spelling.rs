//! The names of fields in requests. They are snake_case here; other clients write camelCase, which means the same.

use std::borrow::Cow;

/// Fields that are more than another spelling.
const RENAMED: &[(&str, &str)] = &[("workflowId", "workflow")];

/// The name of a field as it is known here: `retry_after` for both `retry_after` and `retryAfter`.
pub fn field_name(written: &str) -> Cow<'_, str> {
    if let Some((_, name)) = RENAMED.iter().find(|(theirs, _)| *theirs == written) {
        return Cow::Borrowed(name);
    }
    let is_camel_case = written.starts_with(|c: char| c.is_ascii_lowercase())
        && written.bytes().any(|b| b.is_ascii_uppercase())
        && written.bytes().all(|b| b.is_ascii_alphanumeric());
    if !is_camel_case {
        return Cow::Borrowed(written);
    }
    let mut name = String::with_capacity(written.len() + 4);
    for c in written.chars() {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    Cow::Owned(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_16_camel_case_is_another_spelling() {
        for (written, name) in [
            ("retry_after", "retry_after"),
            ("retryAfter", "retry_after"),
            ("maxDurationSeconds", "max_duration_seconds"),
            ("workflowId", "workflow"),
            ("name", "name"),
            ("Retry", "Retry"),
            ("retry_After", "retry_After"),
            ("retry-After", "retry-After"),
            ("", ""),
        ] {
            assert_eq!(field_name(written), name, "{written}");
        }
    }
}

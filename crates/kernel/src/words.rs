//! Words of the public API that are never stored. The doc comment of a word is its meaning on the generated
//! reference pages; a word without one does not compile.

macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[doc = $meaning:literal])+ $variant:ident = $word:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $meaning])+ $variant),* }

        impl $name {
            /// In the order of the reference page.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }

            /// Its meaning on the reference page, in one line.
            pub fn meaning(self) -> &'static str {
                match self { $($name::$variant => concat!($($meaning),+).trim_start()),* }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::event::EventType;
    use crate::reason::Reason;
    use std::collections::BTreeSet;

    #[test]
    fn each_word_is_listed_once_with_a_sentence_for_its_meaning() {
        let events = EventType::ALL.iter().map(|event| (event.as_str(), event.meaning()));
        let reasons = Reason::ALL.iter().map(|reason| (reason.as_str(), reason.meaning()));
        for words in [events.collect::<Vec<_>>(), reasons.collect()] {
            let distinct: BTreeSet<&str> = words.iter().map(|(word, _)| *word).collect();
            assert_eq!(distinct.len(), words.len());
            for (word, meaning) in words {
                assert!(word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b == b'.'), "{word}");
                assert!(meaning.starts_with(char::is_uppercase) && meaning.ends_with('.'), "{word}: {meaning}");
            }
        }
    }
}

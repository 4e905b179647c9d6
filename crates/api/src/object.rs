//! Structs that are read from JSON objects only. Derived deserializers also fill a struct from a list, field by field:
//! `filter: []` would be an empty filter.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// A struct that was read from a JSON object.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<T>, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Object)
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
    }
}

pub(crate) fn one<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(one)| one)
}

pub(crate) fn maybe<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Option::<Object<T>>::deserialize(deserializer).map(|found| found.map(|Object(one)| one))
}

pub(crate) fn many<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let all = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|Object(one)| one).collect())
}

/// A value that is there, also if it is `null`.
pub(crate) fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(deserializer).map(Some)
}

/// Distinguishes `null` (`Some(None)`) from a missing field (`None`).
pub(crate) fn given<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    maybe(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(deserialize_with = "one")]
        one: Inner,
        #[serde(default, deserialize_with = "maybe")]
        maybe: Option<Inner>,
        #[serde(default, deserialize_with = "many")]
        many: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(default)]
        raw: Option<Box<serde_json::value::RawValue>>,
    }

    #[test]
    fn a_list_is_not_accepted_as_an_object() {
        let read = |text: &str| serde_json::from_str::<Outer>(text);
        let good = read(r#"{"one": {"raw": [1,  2]}, "maybe": null, "many": [{}, {"raw": 1}]}"#).expect("valid JSON");
        assert_eq!(good.one.raw.expect("`raw` is set").get(), "[1,  2]", "byte for byte");
        assert_eq!((good.maybe.is_none(), good.many.len()), (true, 2));
        for bad in [
            r#"{"one": []}"#,
            r#"{"one": [1]}"#,
            r#"{"one": null}"#,
            r#"{"one": {}, "maybe": []}"#,
            r#"{"one": {}, "many": [[]]}"#,
            r#"{"one": {}, "many": {}}"#,
        ] {
            read(bad).expect_err(bad);
        }
    }
}

//! The stored encoding: messages with numbered fields, similar to Protocol Buffers.
//!
//! A message is a sequence of `(number << 1 | kind, value)`, where kind 0 is a varint and kind 1 is length-prefixed
//! bytes. Default values are not written. Numbers are never reused, so every release reads what every earlier one
//! wrote. A [`message!`] keeps the fields that a later release added when it is decoded and encoded again. A
//! [`choice!`] keeps the variants that a later release added, but not fields that a later release added to a known
//! variant. So a variant never gains a field; a new variant with a new number replaces it. The golden files in
//! `tests/golden` check this.
//!
//! This module does not know what is stored. [`seal`] and [`open`] put a format number and a CRC around the outermost
//! message of a row.

use bytes::Bytes;

/// Deeper nested messages are refused; no value that the engine stores comes close.
const DEPTH_MAX: u32 = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes end in the middle of a value.
    Truncated,
    /// A number does not fit its field, or a text is not UTF-8.
    Malformed(&'static str),
    /// A later release wrote it: a name has a number that this release does not know.
    Newer(&'static str),
    /// The checksum does not match: the row was damaged.
    Checksum,
    /// A format number this release does not know.
    Format(u8),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Truncated => write!(f, "the stored bytes end too early"),
            Error::Malformed(what) => write!(f, "a stored {what} is malformed"),
            Error::Newer(what) => write!(f, "a stored {what} is of a later release"),
            Error::Checksum => write!(f, "the stored checksum does not match"),
            Error::Format(n) => write!(f, "stored format {n} is newer than this release"),
        }
    }
}

impl std::error::Error for Error {}

/// An undecoded value.
#[derive(Clone, Copy, Debug)]
pub enum Raw<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

impl<'a> Raw<'a> {
    pub fn varint(self) -> Result<u64, Error> {
        match self {
            Raw::Varint(v) => Ok(v),
            Raw::Bytes(_) => Err(Error::Malformed("number")),
        }
    }

    pub fn bytes(self) -> Result<&'a [u8], Error> {
        match self {
            Raw::Bytes(b) => Ok(b),
            Raw::Varint(_) => Err(Error::Malformed("byte string")),
        }
    }
}

/// Bytes being written, and the lowest format number that a reader of them must know.
#[derive(Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    format: u8,
}

impl Writer {
    pub fn new() -> Writer {
        Writer { bytes: Vec::with_capacity(128), format: 1 }
    }

    /// Something was written that releases before this format do not know.
    pub fn requires(&mut self, format: u8) {
        self.format = self.format.max(format);
    }
}

impl Default for Writer {
    fn default() -> Self {
        Writer::new()
    }
}

impl std::ops::Deref for Writer {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl std::ops::DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

pub fn put_varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

pub fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 1 | 1, out);
    put_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// A field's number, its value, and all of its bytes.
pub type Found<'a> = (u32, Raw<'a>, &'a [u8]);

/// Iterates over the fields of one message.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    fn varint(&mut self) -> Result<u64, Error> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
            self.rest = rest;
            v |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(v);
            }
        }
        Err(Error::Malformed("varint"))
    }

    /// The next field, if there is one.
    pub fn field(&mut self) -> Result<Option<Found<'a>>, Error> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let start = self.rest;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 1).map_err(|_| Error::Malformed("field number"))?;
        let raw = if tag & 1 == 0 {
            Raw::Varint(self.varint()?)
        } else {
            let len = usize::try_from(self.varint()?).map_err(|_| Error::Truncated)?;
            if len > self.rest.len() {
                return Err(Error::Truncated);
            }
            let (value, rest) = self.rest.split_at(len);
            self.rest = rest;
            Raw::Bytes(value)
        };
        Ok(Some((number, raw, &start[..start.len() - self.rest.len()])))
    }
}

/// A value that can be stored in a field.
pub trait Value: Sized {
    fn put(&self, number: u32, out: &mut Writer);
    fn take(raw: Raw<'_>, depth: u32) -> Result<Self, Error>;

    /// M3: does it contain anything that only a later release understands?
    fn is_newer(&self) -> bool {
        false
    }
}

/// A field of a message: a value with a default, an optional value, or a list of values.
pub trait Field {
    fn write(&self, number: u32, out: &mut Writer);
    fn merge(&mut self, raw: Raw<'_>, depth: u32) -> Result<(), Error>;
    /// See [`Value::is_newer`].
    fn is_newer(&self) -> bool;
}

impl<T: Value + Default + PartialEq> Field for T {
    fn write(&self, number: u32, out: &mut Writer) {
        if *self != T::default() {
            self.put(number, out);
        }
    }
    fn merge(&mut self, raw: Raw<'_>, depth: u32) -> Result<(), Error> {
        *self = T::take(raw, depth)?;
        Ok(())
    }
    fn is_newer(&self) -> bool {
        Value::is_newer(self)
    }
}

impl<T: Value> Field for Option<T> {
    fn write(&self, number: u32, out: &mut Writer) {
        if let Some(v) = self {
            v.put(number, out);
        }
    }
    fn merge(&mut self, raw: Raw<'_>, depth: u32) -> Result<(), Error> {
        *self = Some(T::take(raw, depth)?);
        Ok(())
    }
    fn is_newer(&self) -> bool {
        self.as_ref().is_some_and(Value::is_newer)
    }
}

impl<T: Value> Field for Vec<T> {
    fn write(&self, number: u32, out: &mut Writer) {
        for v in self {
            v.put(number, out);
        }
    }
    fn merge(&mut self, raw: Raw<'_>, depth: u32) -> Result<(), Error> {
        self.push(T::take(raw, depth)?);
        Ok(())
    }
    fn is_newer(&self) -> bool {
        self.iter().any(Value::is_newer)
    }
}

macro_rules! varint_value {
    ($($t:ty),*) => {$(
        impl Value for $t {
            fn put(&self, number: u32, out: &mut Writer) {
                put_varint(u64::from(number) << 1, out);
                put_varint(u64::from(*self), out);
            }
            fn take(raw: Raw<'_>, _: u32) -> Result<Self, Error> {
                <$t>::try_from(raw.varint()?).map_err(|_| Error::Malformed("number"))
            }
        }
    )*};
}
varint_value!(u16, u32, u64);

impl Value for bool {
    fn put(&self, number: u32, out: &mut Writer) {
        u32::from(*self).put(number, out);
    }
    fn take(raw: Raw<'_>, _: u32) -> Result<Self, Error> {
        Ok(raw.varint()? != 0)
    }
}

/// Signed numbers are zigzag-encoded, so that small negative numbers stay short.
impl Value for i64 {
    fn put(&self, number: u32, out: &mut Writer) {
        (((*self << 1) ^ (*self >> 63)) as u64).put(number, out);
    }
    fn take(raw: Raw<'_>, _: u32) -> Result<Self, Error> {
        let v = raw.varint()?;
        Ok((v >> 1) as i64 ^ -((v & 1) as i64))
    }
}

impl Value for String {
    fn put(&self, number: u32, out: &mut Writer) {
        put_bytes(number, self.as_bytes(), out);
    }
    fn take(raw: Raw<'_>, _: u32) -> Result<Self, Error> {
        std::str::from_utf8(raw.bytes()?).map(str::to_owned).map_err(|_| Error::Malformed("text"))
    }
}

impl Value for Bytes {
    fn put(&self, number: u32, out: &mut Writer) {
        put_bytes(number, self, out);
    }
    fn take(raw: Raw<'_>, _: u32) -> Result<Self, Error> {
        Ok(Bytes::copy_from_slice(raw.bytes()?))
    }
}

impl<const N: usize> Value for [u8; N] {
    fn put(&self, number: u32, out: &mut Writer) {
        put_bytes(number, self, out);
    }
    fn take(raw: Raw<'_>, _: u32) -> Result<Self, Error> {
        raw.bytes()?.try_into().map_err(|_| Error::Malformed("fixed-size value"))
    }
}

impl<T: Value> Value for Box<T> {
    fn put(&self, number: u32, out: &mut Writer) {
        T::put(self, number, out);
    }
    fn take(raw: Raw<'_>, depth: u32) -> Result<Self, Error> {
        T::take(raw, depth).map(Box::new)
    }
    fn is_newer(&self) -> bool {
        T::is_newer(self)
    }
}

/// A sequence of fields.
pub trait Message: Sized {
    fn write_fields(&self, out: &mut Writer);
    fn read_fields(bytes: &[u8], depth: u32) -> Result<Self, Error>;

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        self.write_fields(&mut out);
        out.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::read_fields(bytes, 0)
    }
}

/// Writes a field of a message; one with a value requires the format that added it.
pub fn write_field(field: &impl Field, number: u32, format: u8, out: &mut Writer) {
    let before = out.len();
    field.write(number, out);
    if out.len() > before {
        out.requires(format);
    }
}

/// A map is stored as a list of its entries, in order of their keys.
impl<T: Value> Field for std::collections::BTreeMap<u32, T> {
    fn write(&self, number: u32, out: &mut Writer) {
        for (key, value) in self {
            put_message(number, out, |out| {
                key.put(1, out);
                value.put(2, out);
            });
        }
    }
    fn merge(&mut self, raw: Raw<'_>, depth: u32) -> Result<(), Error> {
        let (mut key, mut value) = (None, None);
        let depth = deeper(depth)?;
        let mut reader = Reader::new(raw.bytes()?);
        while let Some((number, raw, _)) = reader.field()? {
            match number {
                1 => key = Some(u32::take(raw, depth)?),
                2 => value = Some(T::take(raw, depth)?),
                _ => return Err(Error::Newer("map")),
            }
        }
        let (Some(key), Some(value)) = (key, value) else { return Err(Error::Malformed("map")) };
        self.insert(key, value);
        Ok(())
    }
    fn is_newer(&self) -> bool {
        self.values().any(Value::is_newer)
    }
}

/// Writes a nested message in place. It reserves one byte for the length, which is enough for nearly all messages.
pub fn put_message(number: u32, out: &mut Writer, write: impl FnOnce(&mut Writer)) {
    put_varint(u64::from(number) << 1 | 1, out);
    let at = out.len();
    out.push(0);
    write(out);
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
    } else {
        let mut prefix = Vec::with_capacity(5);
        put_varint(len as u64, &mut prefix);
        out.splice(at..=at, prefix);
    }
}

pub fn deeper(depth: u32) -> Result<u32, Error> {
    if depth >= DEPTH_MAX { Err(Error::Malformed("nesting")) } else { Ok(depth + 1) }
}

/// Fields that a later release wrote, kept verbatim. Boxed, so that the usual case (none) takes only one word.
#[allow(clippy::box_collection)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unknown(Option<Box<Vec<u8>>>);

impl Unknown {
    pub fn keep(&mut self, whole_field: &[u8]) {
        self.0.get_or_insert_default().extend_from_slice(whole_field);
    }
    pub fn write(&self, out: &mut Writer) {
        if let Some(bytes) = &self.0 {
            out.extend_from_slice(bytes);
        }
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// Declares a struct with numbered fields. Values are written in field order; defaults are left out. A field
/// `7 since 2` was added with format 2: whatever has a value in it is sealed as format 2.
#[macro_export]
macro_rules! message {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$fmeta:meta])* $number:literal $(since $format:literal)? => $field:ident : $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $ty,)*
            /// Fields that a later release added.
            pub unknown: $crate::wire::Unknown,
        }

        impl $crate::wire::Message for $name {
            fn write_fields(&self, out: &mut $crate::wire::Writer) {
                $($crate::wire::write_field(&self.$field, $number, 0 $(+ $format)?, out);)*
                self.unknown.write(out);
            }
            fn read_fields(bytes: &[u8], depth: u32) -> Result<Self, $crate::wire::Error> {
                let mut message = Self::default();
                let mut reader = $crate::wire::Reader::new(bytes);
                let depth = $crate::wire::deeper(depth)?;
                while let Some((number, raw, whole)) = reader.field()? {
                    match number {
                        $($number => $crate::wire::Field::merge(&mut message.$field, raw, depth)?,)*
                        _ => { message.unknown.keep(whole); let _ = raw; }
                    }
                }
                Ok(message)
            }
        }

        impl $crate::wire::Value for $name {
            fn put(&self, number: u32, out: &mut $crate::wire::Writer) {
                $crate::wire::put_message(number, out, |out| $crate::wire::Message::write_fields(self, out));
            }
            fn take(raw: $crate::wire::Raw<'_>, depth: u32) -> Result<Self, $crate::wire::Error> {
                $crate::wire::Message::read_fields(raw.bytes()?, depth)
            }
            fn is_newer(&self) -> bool {
                !self.unknown.is_empty() $(|| $crate::wire::Field::is_newer(&self.$field))*
            }
        }
    };
}

/// Declares an enum of numbered variants, each with numbered fields. A variant that this release does not know,
/// or that has a field it does not know, becomes `Unknown` with its bytes, and encodes back to the same bytes.
#[macro_export]
macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$vmeta:meta])* $vnumber:literal $(since $format:literal)? => $variant:ident {
            $($(#[$fmeta:meta])* $number:literal $(since $fformat:literal)? => $field:ident : $ty:ty),* $(,)?
        }),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($(#[$vmeta])* $variant { $($(#[$fmeta])* $field: $ty),* },)*
            /// A variant of a later release.
            Unknown { number: u32, bytes: bytes::Bytes },
        }

        impl $crate::wire::Message for $name {
            fn write_fields(&self, out: &mut $crate::wire::Writer) {
                match self {
                    $($name::$variant { $($field),* } => {
                        $(out.requires($format);)?
                        $crate::wire::put_message($vnumber, out, |_out| {
                            $($crate::wire::write_field($field, $number, 0 $(+ $fformat)?, _out);)*
                        })
                    })*
                    $name::Unknown { number, bytes } => $crate::wire::put_bytes(*number, bytes, out),
                }
            }
            fn read_fields(bytes: &[u8], depth: u32) -> Result<Self, $crate::wire::Error> {
                let _depth = $crate::wire::deeper(depth)?;
                let mut reader = $crate::wire::Reader::new(bytes);
                let (number, raw, _) = reader.field()?.ok_or($crate::wire::Error::Truncated)?;
                let inner = raw.bytes()?;
                match number {
                    $($vnumber => {
                        $(let mut $field = <$ty>::default();)*
                        let mut fields = $crate::wire::Reader::new(inner);
                        while let Some((number, _raw, _)) = fields.field()? {
                            match number {
                                $($number => $crate::wire::Field::merge(&mut $field, _raw, _depth)?,)*
                                _ => {
                                    let bytes = bytes::Bytes::copy_from_slice(inner);
                                    return Ok($name::Unknown { number: $vnumber, bytes });
                                }
                            }
                        }
                        Ok($name::$variant { $($field),* })
                    })*
                    _ => Ok($name::Unknown { number, bytes: bytes::Bytes::copy_from_slice(inner) }),
                }
            }
        }

        impl $crate::wire::Value for $name {
            fn put(&self, number: u32, out: &mut $crate::wire::Writer) {
                $crate::wire::put_message(number, out, |out| $crate::wire::Message::write_fields(self, out));
            }
            fn take(raw: $crate::wire::Raw<'_>, depth: u32) -> Result<Self, $crate::wire::Error> {
                $crate::wire::Message::read_fields(raw.bytes()?, depth)
            }
            fn is_newer(&self) -> bool {
                match self {
                    $($name::$variant { $($field),* } => false $(|| $crate::wire::Field::is_newer($field))*,)*
                    $name::Unknown { .. } => true,
                }
            }
        }
    };
}

/// Declares an enum with one text and one stored number per name. Code that lists, parses or documents the names
/// uses `ALL`.
#[macro_export]
macro_rules! names {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident = $number:literal $(since $format:literal)? $text:literal),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub enum $name { #[default] $($(#[$vmeta])* $variant = $number),* }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl $crate::wire::Value for $name {
            fn put(&self, number: u32, out: &mut $crate::wire::Writer) {
                match self { $($name::$variant => { $(out.requires($format);)? })* }
                (*self as u32).put(number, out);
            }
            fn take(raw: $crate::wire::Raw<'_>, _: u32) -> Result<Self, $crate::wire::Error> {
                let number = raw.varint()?;
                Self::ALL.iter().copied().find(|v| *v as u64 == number)
                    .ok_or($crate::wire::Error::Newer(stringify!($name)))
            }
        }
    };
}

/// Encodes a stored row: format number, CRC-32 of the message, the message. The format number is the lowest that a
/// release must know to read all of it, so that older releases go on reading what they understand (M3).
pub fn seal(message: &impl Message) -> Vec<u8> {
    let mut out = Writer::new();
    out.extend_from_slice(&[0; 5]);
    message.write_fields(&mut out);
    let crc = crc32fast::hash(&out[5..]);
    out[1..5].copy_from_slice(&crc.to_le_bytes());
    out[0] = out.format;
    out.bytes
}

/// Checks and decodes a row that [`seal`] wrote. `newest` is the highest format number that this release can read.
pub fn open<M: Message>(newest: u8, bytes: &[u8]) -> Result<M, Error> {
    let (head, body) = bytes.split_at_checked(5).ok_or(Error::Truncated)?;
    if head[0] == 0 || head[0] > newest {
        return Err(Error::Format(head[0]));
    }
    if crc32fast::hash(body).to_le_bytes() != head[1..5] {
        return Err(Error::Checksum);
    }
    M::decode(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    message! { pub struct Old { 1 => a: u32, 2 => b: String } }
    message! { pub struct New { 1 => a: u32, 2 => b: String, 3 => c: Vec<i64>, 4 => d: Option<Box<New>> } }
    choice! { pub enum Small { 1 => One { 1 => x: u32 } } }
    choice! { pub enum Large { 1 => One { 1 => x: u32 }, 2 => Two { 1 => y: String, 2 => z: bool } } }

    fn new() -> New {
        let inner = New { a: 7, ..Default::default() };
        New { a: 1, b: "é".into(), c: vec![-1, 0, i64::MIN], d: Some(Box::new(inner)), ..Default::default() }
    }

    #[test]
    fn a_message_survives_a_round_trip() {
        assert_eq!(New::decode(&new().encode()), Ok(new()));
        assert!(New::default().encode().is_empty(), "defaults are not written");
    }

    #[test]
    fn fields_of_a_later_release_survive_an_older_one() {
        let old = Old::decode(&new().encode()).unwrap();
        assert_eq!((old.a, old.b.as_str()), (1, "é"));
        assert_eq!(New::decode(&old.encode()), Ok(new()));
    }

    #[test]
    fn a_variant_of_a_later_release_is_kept() {
        let two = Large::Two { y: "y".into(), z: true };
        let seen = Small::decode(&two.encode()).unwrap();
        assert!(matches!(seen, Small::Unknown { number: 2, .. }));
        assert_eq!(Large::decode(&seen.encode()), Ok(two));
    }

    #[test]
    fn m3_what_a_later_release_wrote_is_recognised_at_any_depth() {
        choice! { pub enum Wider { 1 => One { 1 => x: u32, 2 => y: String } } }
        names! { pub enum Few { A = 1 "a" } }
        names! { pub enum Many { A = 1 "a", B = 2 "b" } }
        message! { pub struct Holder { 1 => inner: Vec<Small>, 2 => old: Option<Box<Old>> } }
        message! { pub struct NewHolder { 1 => inner: Vec<Wider>, 2 => old: Option<Box<New>> } }
        message! { pub struct FewHolder { 1 => name: Few } }
        message! { pub struct ManyHolder { 1 => name: Many } }

        let plain = NewHolder { inner: vec![Wider::One { x: 1, y: String::new() }], ..Default::default() };
        assert!(!Value::is_newer(&Holder::decode(&plain.encode()).unwrap()));
        let wide = NewHolder { inner: vec![Wider::One { x: 1, y: "y".into() }], ..Default::default() };
        let nested = NewHolder { old: Some(Box::new(new())), ..Default::default() };
        for newer in [wide, nested] {
            let seen = Holder::decode(&newer.encode()).unwrap();
            assert!(Value::is_newer(&seen), "{seen:?}");
            assert_eq!(NewHolder::decode(&seen.encode()), Ok(newer), "and nothing of it is lost");
        }
        let named = ManyHolder { name: Many::B, ..Default::default() };
        assert_eq!(FewHolder::decode(&named.encode()), Err(Error::Newer("Few")));
        assert_eq!((Few::parse("b"), Many::parse("b")), (None, Some(Many::B)));
    }

    #[test]
    fn damage_is_detected_and_never_panics() {
        let sealed = seal(&new());
        assert_eq!(open::<New>(1, &sealed), Ok(new()));
        for i in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[i] ^= 0x10;
            assert!(open::<New>(1, &damaged).is_err(), "byte {i}");
            assert!(open::<New>(1, &sealed[..i]).is_err(), "cut at {i}");
        }
    }

    #[test]
    fn m3_what_format_2_added_is_sealed_as_format_2() {
        choice! { pub enum Grown { 1 => One { 1 => x: u32, 2 since 2 => y: u32 }, 2 since 2 => Two { 1 => x: u32 } } }
        names! { pub enum Word { A = 1 "a", B = 2 since 2 "b" } }
        message! {
            pub struct Holder {
                1 => list: Vec<Grown>,
                2 => word: Word,
                3 since 2 => inner: std::collections::BTreeMap<u32, New>,
            }
        }
        let plain = Holder { list: vec![Grown::One { x: 1, y: 0 }], ..Default::default() };
        let variant = Holder { list: vec![Grown::Two { x: 1 }], ..Default::default() };
        let inside = Holder { list: vec![Grown::One { x: 1, y: 1 }], ..Default::default() };
        let word = Holder { word: Word::parse("b").unwrap(), ..Default::default() };
        let field = Holder { inner: [(7, new()), (300, New::default())].into(), ..Default::default() };
        for (holder, format) in [(plain, 1), (variant, 2), (inside, 2), (word, 2), (field, 2)] {
            let sealed = seal(&holder);
            assert_eq!(sealed[0], format, "{holder:?}");
            assert_eq!(open::<Holder>(2, &sealed), Ok(holder));
            assert_eq!(open::<Holder>(1, &sealed).err(), (format == 2).then_some(Error::Format(2)));
        }
    }

    #[test]
    fn a_long_nested_message_gets_a_long_length() {
        let long = New { d: Some(Box::new(New { b: "x".repeat(300), ..Default::default() })), ..Default::default() };
        assert_eq!(New::decode(&long.encode()), Ok(long));
    }
}

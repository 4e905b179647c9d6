//! Hash maps and sets keyed by ids that the engine generates.
//!
//! They use the standard hash without its random seed, so every process iterates a map in the same order and the
//! simulator can replay the whole engine from a seed. Use them only for generated ids: a client that could choose the
//! keys could make them collide.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};

pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<DefaultHasher>>;

//! Maps in memory by ids this system made.
//!
//! The standard hash, without its random key: a map is walked in the same order in every process, so the simulator can
//! replay a run of the whole engine from its seed. Only for ids of our own: a client that could choose the keys could
//! make them collide.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};

pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
pub type IdSet<K> = HashSet<K, BuildHasherDefault<DefaultHasher>>;

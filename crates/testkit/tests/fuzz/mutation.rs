//! Changes bytes at random: parts are removed, repeated, exchanged and overwritten.

use testkit::rng::Rng;

/// Some input of the corpus with one to eight changes.
pub fn mutated(rng: &mut Rng, corpus: &[Vec<u8>], tokens: &[&str], len_max: usize) -> Vec<u8> {
    let mut bytes = any(rng, corpus).clone();
    for _ in 0..=rng.below(8) {
        mutate(rng, &mut bytes, corpus, tokens);
        bytes.truncate(len_max);
    }
    bytes
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], tokens: &[&str]) {
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    let part = at..(at + 1 + rng.below(16) as usize).min(bytes.len());
    match rng.below(9) {
        0 => drop(bytes.drain(part)),
        1 => bytes.truncate(at),
        2 => insert(bytes, at, rng.pick(tokens).as_bytes()),
        3 => drop(bytes.splice(part, rng.pick(tokens).bytes())),
        // Deep nesting and long lists grow from repeated parts.
        4 => {
            let count = 1 << rng.below(9);
            let repeated = bytes[part].repeat(count);
            insert(bytes, at, &repeated);
        }
        5 => {
            let other = any(rng, corpus);
            let from = rng.below(other.len() as u64 + 1) as usize;
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        6 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        7 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.pick(&[0, 1, 0x7f, 0x80, 0xff, b'0', b'9', b'"', b'{', b'\n', byte.wrapping_add(1)]);
            }
        }
        _ => {
            let moved: Vec<u8> = bytes.drain(part).collect();
            let to = rng.below(bytes.len() as u64 + 1) as usize;
            insert(bytes, to, &moved);
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, more: &[u8]) {
    bytes.splice(at..at, more.iter().copied());
}

fn any<'a>(rng: &mut Rng, corpus: &'a [Vec<u8>]) -> &'a Vec<u8> {
    &corpus[rng.below(corpus.len() as u64) as usize]
}

//! Parts of the world that states share, and the digests that tell states apart.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

/// Something that most steps leave as it is: shared by all states that have it, and hashed once.
#[derive(Debug)]
pub(crate) struct Part<T>(Rc<(u64, T)>);

impl<T: Hash> Part<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Rc::new((digest(&value), value)))
    }

    /// Changes it, for this state alone.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R
    where
        T: Clone,
    {
        let mut value = self.0.1.clone();
        let result = change(&mut value);
        *self = Self::new(value);
        result
    }
}

impl<T> Part<T> {
    pub(crate) fn digest(&self) -> u64 {
        self.0.0
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.1
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}

/// The 64 bits by which a value is known. Two different values out of 10^8 share them with a chance of 1 in 3,000.
pub(crate) fn digest(value: &(impl Hash + ?Sized)) -> u64 {
    let mut mixer = Mixer::default();
    value.hash(&mut mixer);
    mixer.finish()
}

/// Mixes each word into all 64 bits; the standard hasher takes three times as long over such small values.
pub(crate) struct Mixer(u64);

impl Default for Mixer {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Mixer {
    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0.rotate_left(23) ^ word ^ 0xa076_1d64_78bd_642f)
            * u128::from(word.wrapping_add(0xe703_7ed1_a0b4_28db) | 1);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64) ^ self.0.wrapping_mul(0x8ebc_6af0_9c88_c6e3);
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        let mut last = Self(self.0);
        last.mix(0x5896_5da1_17ee_9d4f);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_i64(&mut self, value: i64) {
        self.mix(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

//! Random ids, from the operating system's generator each time: a copy of a process or of a machine
//! must not draw the same ones (R24).

use crate::error::StoreError;
use lockwarden_core::{SessionId, Token};

/// What a token of ours begins with: `ls` and people tell ours from others' by it.
pub(crate) const TOKEN_PREFIX: &str = "lw1-";

/// A new token: unique per acquisition, unguessable.
pub(crate) fn token() -> Result<Token, StoreError> {
    // Once per acquisition: without the formatting machinery and its allocations.
    let mut text = [0; TOKEN_PREFIX.len() + HEX_BYTES];
    let (prefix, digits) = text.split_at_mut(TOKEN_PREFIX.len());
    prefix.copy_from_slice(TOKEN_PREFIX.as_bytes());
    digits.copy_from_slice(&hex_digits()?);
    Ok(Token::found(&text))
}

/// A new session id.
pub(crate) fn session_id() -> Result<SessionId, StoreError> {
    Ok(SessionId::new(&hex()?))
}

/// 128 random bits as text.
pub(crate) fn hex() -> Result<String, StoreError> {
    Ok(hex_digits()?.into_iter().map(char::from).collect())
}

/// As many characters stand for 128 bits.
const HEX_BYTES: usize = 32;

fn hex_digits() -> Result<[u8; HEX_BYTES], StoreError> {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let mut bytes = [0_u8; HEX_BYTES / 2];
    fill(&mut bytes)?;
    let mut text = [0_u8; HEX_BYTES];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    Ok(text)
}

/// A number from 0 to below `bound`, for jitter.
pub(crate) fn below(bound: u64) -> u64 {
    let mut bytes = [0_u8; 8];
    // Jitter only spreads load: without randomness nothing breaks but the spread.
    match fill(&mut bytes) {
        Ok(()) => u64::from_ne_bytes(bytes) % bound.max(1),
        Err(_) => 0,
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), StoreError> {
    getrandom::fill(bytes).map_err(|error| StoreError::Invalid {
        detail: format!("the operating system gives no random bytes: {error}"),
    })
}

//! Random ids, from the operating system's generator each time: a copy of a process or of a machine
//! must not draw the same ones (R24).

use crate::error::StoreError;
use lockwarden_core::{SessionId, Token};

/// What a token of ours begins with: `ls` and people tell ours from others' by it.
pub(crate) const TOKEN_PREFIX: &str = "lw1-";

/// A new token: unique per acquisition, unguessable.
pub(crate) fn token() -> Result<Token, StoreError> {
    Ok(Token::found(format!("{TOKEN_PREFIX}{}", hex()?).as_bytes()))
}

/// A new session id.
pub(crate) fn session_id() -> Result<SessionId, StoreError> {
    Ok(SessionId::new(&hex()?))
}

/// 128 random bits as text.
pub(crate) fn hex() -> Result<String, StoreError> {
    let mut bytes = [0_u8; 16];
    fill(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
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

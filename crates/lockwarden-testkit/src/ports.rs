//! Free ports that stay free: between a server's death and its restart nobody else may take its port.

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::while_not_forking;

/// Below the range from which the kernel takes ports for outgoing connections. A port of that range
/// could be lost to any client while its server is down, and a client that keeps trying to connect to
/// it can even end up connected to itself.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// A port of 127.0.0.1 that no other user of this module has, in any process, while this lives.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    // A name without a file: it is gone with the process, however that ends.
    name: Option<UnixListener>,
}

impl Port {
    /// Reserves one on which nobody listens.
    pub(crate) fn reserve() -> Port {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Another start per process saves most collisions between processes.
        let start = std::process::id().wrapping_mul(7919);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let candidate = FIRST + start.wrapping_add(step) % COUNT;
            let number = u16::try_from(candidate).expect("the range ends below 65536");
            let Ok(name) = name_of(number) else { continue };
            if while_not_forking(|| TcpListener::bind(("127.0.0.1", number)).is_ok()) {
                return Port { number, name: Some(name) };
            }
        }
        panic!("no free port between {FIRST} and {}", FIRST + COUNT);
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        while_not_forking(|| self.name = None);
    }
}

fn name_of(number: u16) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!(
        "lockwarden-testkit-{number}"
    ))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_is_not_given_twice_and_comes_back_when_dropped() {
        let port = Port::reserve();
        assert!(name_of(port.number()).is_err(), "reserved");
        assert!(TcpListener::bind(("127.0.0.1", port.number())).is_ok(), "and free for its owner");
        assert_ne!(Port::reserve().number(), port.number());
        let number = port.number();
        drop(port);
        assert!(name_of(number).is_ok());
    }
}

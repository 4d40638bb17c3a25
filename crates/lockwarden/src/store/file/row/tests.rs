//! What was written is read again; what was not written is refused and never panics.

use super::*;
use proptest::{collection::vec, option, prelude::*};

fn token() -> impl Strategy<Value = Token> {
    vec(any::<u8>(), 1..40).prop_map(|bytes| Token::found(&bytes))
}

fn session() -> impl Strategy<Value = SessionId> {
    "[a-d]{1,2}".prop_map(|id| SessionId::new(&id))
}

fn text() -> impl Strategy<Value = Arc<str>> {
    ".{0,6}".prop_map(Arc::from)
}

fn party() -> impl Strategy<Value = Arc<Party>> {
    let process = (text(), any::<u32>(), any::<u64>())
        .prop_map(|(namespace, pid, start)| Process { namespace, pid, start });
    let tag = (text(), text()).prop_map(|(key, value)| Tag { key, value });
    (text(), text(), text(), vec(process, 0..3), text(), vec(tag, 0..3)).prop_map(
        |(owner, label, host, processes, site, tags)| {
            let (processes, tags) = (processes.into(), tags.into());
            Arc::new(Party { owner, label, host, processes, site, tags })
        },
    )
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        (any::<u32>(), any::<u32>()).prop_map(|(count, of)| Mode::Permits { count, of })
    ]
}

fn state() -> impl Strategy<Value = HoldState> {
    prop_oneof![
        Just(HoldState::Held),
        Just(HoldState::Revoked),
        Just(HoldState::Cooling),
        Just(HoldState::HandedOver),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    let rest = (state(), any::<u64>(), any::<u64>(), any::<bool>(), mode());
    (token(), text(), session(), numbers, text(), rest, party()).prop_map(
        |(
            token,
            proof,
            session,
            (fence, lease_ms, grace_ms, since_us),
            run,
            (state, least_until_us, delay_ms, endless, mode),
            party,
        )| {
            let run = Run::new(&run);
            Record {
                token,
                proof,
                session,
                fence,
                lease_ms,
                grace_ms,
                run,
                state,
                least_until_us,
                delay_ms,
                endless,
                mode,
                since_us,
                party,
            }
        },
    )
}

fn ticket() -> impl Strategy<Value = Ticket> {
    let numbers = [(); 6].map(|()| any::<u64>());
    let rest = (option::of(any::<u64>()), any::<bool>(), any::<bool>(), mode());
    (token(), text(), session(), numbers, rest, party()).prop_map(
        |(token, proof, session, numbers, (deadline_us, several, endless, mode), party)| {
            let [lease_ms, grace_ms, at_least_ms, delay_ms, floor, since_us] = numbers;
            Ticket {
                token,
                proof,
                session,
                lease_ms,
                grace_ms,
                at_least_ms,
                delay_ms,
                endless,
                floor,
                deadline_us,
                since_us,
                several,
                mode,
                party,
            }
        },
    )
}

fn request() -> impl Strategy<Value = Request> {
    let numbers = (option::of(any::<u64>()), any::<u64>(), any::<u64>());
    (token(), session(), vec(("[a-z]{1,3}", mode()), 1..5), numbers, party()).prop_map(
        |(token, session, wants, (deadline_us, since_us, expires_us), party)| {
            let (names, modes): (Vec<String>, Vec<Mode>) = wants.into_iter().unzip();
            let modes = modes.into();
            let names = names.iter().map(|name| Name::new(name).unwrap()).collect();
            Request { token, session, names, modes, deadline_us, since_us, expires_us, party }
        },
    )
}

fn lock() -> impl Strategy<Value = Lock> {
    let key = (token(), option::of(any::<u64>()))
        .prop_map(|(token, expires_us)| Key { token, expires_us });
    (
        option::of(key),
        (option::of(record()), vec((any::<u64>(), record()), 0..4)),
        vec(ticket(), 0..6),
        any::<u64>(),
        option::of((token(), any::<u64>())),
    )
        .prop_map(|(key, (record, holders), queue, queue_expires_us, asked)| Lock {
            key,
            record,
            together: holders.into_iter().fold(
                Together::default(),
                |mut together, (end_us, record)| {
                    together.put(record, end_us);
                    together
                },
            ),
            queue,
            queue_expires_us,
            asked,
        })
}

fn message() -> impl Strategy<Value = Message> {
    let name = || ".{1,9}".prop_map(|name| Name::new(&name).unwrap());
    let view = record().prop_map(|record| RecordView {
        session: record.session,
        fence: record.fence,
        lease_ms: record.lease_ms,
        grace_ms: record.grace_ms,
        held_ms: record.since_us,
        state: record.state,
        delay_ms: record.delay_ms,
        least_left_ms: record.least_until_us,
        endless: record.endless,
        mode: record.mode,
        party: record.party,
    });
    let holder = (token(), option::of(any::<u64>()), option::of(view))
        .prop_map(|(token, ttl_ms, record)| Box::new(HolderView { token, ttl_ms, record }));
    prop_oneof![
        (name(), token(), any::<u64>(), any::<u64>(), text(), option::of(token())).prop_map(
            |(name, token, fence, lease_ms, epoch, first)| {
                Message::Grant { name, token, fence, lease_ms, epoch: Epoch::new(&epoch), first }
            }
        ),
        (name(), token(), holder).prop_map(|(name, token, holder)| Message::First {
            name,
            token,
            holder
        }),
        (name(), token()).prop_map(|(name, token)| Message::Asking { name, token }),
        (name(), token(), party()).prop_map(|(name, token, by)| Message::Recall {
            name,
            token,
            by
        }),
        (name(), token(), any::<u64>()).prop_map(|(name, token, after_ms)| Message::Revoked {
            name,
            token,
            after_ms
        }),
    ]
}

proptest! {
    #[test]
    fn a_lock_comes_back_as_it_was(lock in lock()) {
        prop_assert_eq!(lock_from_bytes(&lock_to_bytes(&lock)), Ok(lock));
    }

    #[test]
    fn a_message_comes_back_as_it_was(message in message()) {
        prop_assert_eq!(message_from_bytes(&message_to_bytes(&message)), Ok(message));
    }

    #[test]
    fn a_request_comes_back_as_it_was(request in request()) {
        prop_assert_eq!(request_from_bytes(&request_to_bytes(&request)), Ok(request));
    }

    #[test]
    fn a_cut_row_is_refused(lock in lock(), request in request(), cut in any::<prop::sample::Index>()) {
        let bytes = lock_to_bytes(&lock);
        prop_assert_eq!(lock_from_bytes(&bytes[..cut.index(bytes.len())]), Err(Damaged));
        let bytes = request_to_bytes(&request);
        prop_assert_eq!(request_from_bytes(&bytes[..cut.index(bytes.len())]), Err(Damaged));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = lock_from_bytes(&bytes);
        let _ = message_from_bytes(&bytes);
        let _ = request_from_bytes(&bytes);
    }
}

/// A thousand waiters of one process cost little more than their tokens.
#[test]
fn tickets_share_what_they_have_in_common() {
    let party = Arc::new(Party { label: "worker".into(), host: "host".into(), ..Party::default() });
    let ticket = |number: u64| Ticket {
        at_least_ms: 0,
        delay_ms: 0,
        endless: false,
        mode: Default::default(),
        several: false,
        token: Token::found(&[7; 32]),
        proof: "".into(),
        session: SessionId::new("0123456789abcdef0123456789abcdef"),
        lease_ms: 30_000,
        grace_ms: 3_000,
        floor: 0,
        deadline_us: None,
        since_us: 1_700_000_000_000_000 + number,
        party: party.clone(),
    };
    let lock = Lock { queue: (0..1000).map(ticket).collect(), ..Lock::default() };
    assert!(lock_to_bytes(&lock).len() < 1000 * 54);
}

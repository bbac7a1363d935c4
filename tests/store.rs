//! The store against a real Redis (`DWELL_TEST_REDIS_URL`), and against private servers for what would disturb others.
//!
//! Each test has its own key prefix and removes its keys at the end. Private servers are `redis-server` from PATH, or
//! what `DWELL_TEST_REDIS_SERVER` names (another version, Valkey).

use std::collections::HashSet;
use std::fmt::Write as _;
use std::future::Future;
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dwell::config::{self, Durability, Secret};
use dwell::duration::Millis;
use dwell::store::{
    Before, Cancelled, Claim, Guarantee, Id, Kind, Meta, Park, Parked, Record, Rescheduled, Store, Target,
};
use futures_util::FutureExt as _;
use redis::aio::MultiplexedConnection;

const LEASE: Millis = Millis::seconds(30);
const BRIDGE: &str = "orders";

// === due times ===

#[tokio::test]
async fn a_message_is_claimed_when_due_and_not_a_millisecond_before() {
    bench(1, async |mut bench| {
        for wait in [0, 1, 7, 250] {
            let before = bench.micros().await;
            let parked = bench.park(Park { wait: Millis(wait), ..message() }).await;
            assert!(parked.due_ms * 1_000 >= before + wait * 1_000, "the wait was cut: {parked:?}, {before}");
            assert!(parked.due_ms * 1_000 <= bench.micros().await + wait * 1_000 + 1_000, "{parked:?}");

            let claim = bench.claim_one().await;
            assert_eq!(claim.items[0].due_ms, parked.due_ms);
            // The lease runs from the server's own idea of now, so its end tells when the script ran.
            let [(_, lapses_at)] = bench.scores("lease").await[..] else { panic!("one lease") };
            assert!(lapses_at - LEASE.0 >= parked.due_ms, "claimed early: {lapses_at}, {parked:?}");
            bench.settle_all(&claim).await;
        }
        bench.is_empty().await;
    })
    .await;
}

/// B10, B11, B14.
#[tokio::test]
async fn very_long_waits_are_kept_exactly() {
    bench(1, async |mut bench| {
        let waits =
            [4_294_967_295, 4_294_967_296, 60 * 86_400_000, 180 * 86_400_000, 365 * 86_400_000, 1_000_000_000_000_000];
        for wait in waits {
            let before = bench.millis().await;
            let item = Park { wait: Millis(wait), ..message() };
            let parked = bench.park(item.clone()).await;
            let after = bench.millis().await;
            assert!((before + wait..=after + wait + 1).contains(&parked.due_ms), "{wait}: {parked:?}");
            assert_eq!(bench.scores("due").await, [(item.id.as_bytes().to_vec(), parked.due_ms)]);

            let claim = bench.claim().await;
            assert!(claim.items.is_empty());
            let left = claim.next_due_in.expect("something is pending").0;
            assert!(left <= wait + 1 && left + 60_000 > wait, "{left} of {wait}");
            assert_eq!(bench.store.cancel(BRIDGE, Target::Id(item.id)).await, Ok(Cancelled::Cancelled(item.id)));
        }
        let beyond = Park { wait: Millis(1_000_000_000_000_001), ..message() };
        let error = bench.store.park(BRIDGE, &[beyond]).await.remove(0).expect_err("no due time says that");
        assert!(matches!(error.kind(), Kind::TooLong(_)) && !error.is_fatal() && !error.is_retryable(), "{error}");
    })
    .await;
}

#[tokio::test]
async fn equal_due_times_come_out_in_the_order_they_went_in() {
    bench(1, async |mut bench| {
        let items: Vec<Park> = (0..100).map(|_| message()).collect();
        let first_in: Vec<Id> = items.iter().map(|item| item.id).collect();
        // Parked in another order, and all made due in the same millisecond.
        let mut shuffled = items;
        shuffled.sort_by_key(|item| item.id.as_bytes()[15]);
        bench.park_all(&shuffled).await;
        bench.all_due_at_once(&first_in).await;
        let claim = bench.claim().await;
        assert_eq!(claim.items.iter().map(|item| item.id).collect::<Vec<_>>(), first_in);
    })
    .await;
}

#[tokio::test]
async fn the_earliest_due_is_known_while_something_is_pending() {
    bench(1, async |mut bench| {
        assert_eq!(bench.claim().await.next_due_in, None);
        bench.park(Park { wait: Millis::days(2), ..message() }).await;
        bench.park(Park { wait: Millis::days(1), ..message() }).await;
        let left = bench.claim().await.next_due_in.expect("two are pending");
        assert!(left <= Millis(86_400_001) && left > Millis(86_340_000), "{left}");
        for _ in 0..2 {
            bench.park(Park { wait: Millis::ZERO, ..message() }).await;
        }
        bench.until("both are due", async |bench| bench.depth().await.overdue == 2).await;
        let claim = bench.store.claim(BRIDGE, 0, 1, LEASE).await.expect("redis is there");
        assert_eq!((claim.items.len(), claim.next_due_in), (1, Some(Millis::ZERO)));
        let depth = bench.depth().await;
        assert_eq!((depth.pending, depth.claimed, depth.overdue), (3, 1, 1));
        assert_eq!(depth.next_due_in, Some(Millis::ZERO));
    })
    .await;
}

// === park ===

#[tokio::test]
async fn parking_twice_is_parking_once() {
    bench(1, async |mut bench| {
        let item = Park { wait: Millis::days(1), ..message() };
        let first = bench.park(item.clone()).await;
        let second = bench.park(Park { wait: Millis::days(2), ..item.clone() }).await;
        assert_eq!(second, Parked { due_ms: first.due_ms, replaced: None, already: true });
        assert_eq!(bench.depth().await.pending, 1);

        bench.all_due_at_once(&[item.id]).await;
        let claim = bench.claim().await;
        assert_eq!(claim.items[0].record.as_ref().ok(), Some(&item.record), "a second park changed the first");
        // Also while it is claimed: it must not come out twice.
        assert!(bench.park(item).await.already);
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

/// B100.
#[tokio::test]
async fn messages_that_say_the_same_are_two() {
    bench(1, async |mut bench| {
        let one = message();
        let other = Park { id: Id::fresh(), ..one.clone() };
        bench.park_all(&[Park { wait: Millis::days(10), ..one }, Park { wait: Millis::days(20), ..other }]).await;
        assert_eq!(bench.scores("due").await.len(), 2);
    })
    .await;
}

/// B88.
#[tokio::test]
async fn binary_bodies_come_out_as_they_went_in() {
    bench(1, async |mut bench| {
        let large: Vec<u8> = (0..1u32 << 20).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let at_the_border = large[..32 << 10].to_vec();
        for body in [Vec::new(), b"\x00\xff\xfe\r\n".to_vec(), b"\xed\xa0\x80".to_vec(), at_the_border, large] {
            let mut item = Park { wait: Millis::ZERO, ..message() };
            item.record.body = body.into();
            item.record.properties = Bytes::from_static(b"\x80\x00\xc3\x28");
            bench.park(item.clone()).await;
            let claim = bench.claim_one().await;
            assert!(claim.items[0].record.as_ref().is_ok_and(|record| *record == item.record));
            bench.settle_all(&claim).await;
        }
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_key_replaces_what_is_pending() {
    bench(4, async |mut bench| {
        let old = keyed("order-1", Millis::days(1));
        let new = keyed("order-1", Millis::days(2));
        let other = keyed("order-2", Millis::days(1));
        bench.park_all(&[old.clone(), other.clone()]).await;
        let parked = bench.park(new.clone()).await;
        assert_eq!((parked.replaced, parked.already), (Some(old.id), false));
        assert_eq!(bench.depth().await.pending, 2);
        assert_eq!(bench.store.cancel(BRIDGE, Target::Id(old.id)).await, Ok(Cancelled::Unknown));
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Cancelled(new.id)));
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Unknown));
        assert_eq!(bench.store.cancel(BRIDGE, Target::Id(other.id)).await, Ok(Cancelled::Cancelled(other.id)));
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn the_last_of_one_batch_with_the_same_key_stays() {
    bench(4, async |mut bench| {
        let items: Vec<Park> = (0..5).map(|_| keyed("order-1", Millis::days(1))).collect();
        let parked = bench.park_all(&items).await;
        let replaced: Vec<Option<Id>> = parked.iter().map(|parked| parked.replaced).collect();
        let before: Vec<Option<Id>> =
            std::iter::once(None).chain(items[..4].iter().map(|item| Some(item.id))).collect();
        assert_eq!(replaced, before);
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Cancelled(items[4].id)));
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn writers_of_one_key_agree_on_one_message() {
    bench(4, async |mut bench| {
        let mut writers = Vec::new();
        for _ in 0..3 {
            let store = bench.store.clone();
            writers.push(tokio::spawn(async move {
                for _ in 0..4 {
                    let item = keyed("order-1", Millis::days(1));
                    retried(&store, item).await;
                }
            }));
        }
        for writer in writers {
            writer.await.expect("no writer fails");
        }
        assert_eq!(bench.depth().await.pending, 1);
        assert!(matches!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Cancelled(_))));
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_key_does_not_replace_what_was_ever_claimed() {
    bench(1, async |mut bench| {
        let old = keyed("order-1", Millis::ZERO);
        bench.park(old.clone()).await;
        let claim = bench.claim_one().await;
        let second = keyed("order-1", Millis::days(1));
        assert_eq!(bench.park(second.clone()).await.replaced, None, "it is claimed");
        // The settle of the old one leaves the entry of the new one.
        bench.settle_all(&claim).await;
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Cancelled(second.id)));
        bench.is_empty().await;

        bench.park(old.clone()).await;
        bench.lapse().await;
        let third = keyed("order-1", Millis::days(1));
        assert_eq!(bench.park(third.clone()).await.replaced, None, "its lease has lapsed once");
        assert_eq!(bench.depth().await.pending, 2);
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Cancelled(third.id)));
    })
    .await;
}

// === claim and settle ===

/// B96.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claimers_never_share_a_message() {
    bench(1, async |mut bench| {
        let items: Vec<Park> = (0..1_000).map(|_| message()).collect();
        let ids: Vec<Id> = items.iter().map(|item| item.id).collect();
        bench.park_all(&items).await;
        bench.all_due_at_once(&ids).await;
        let mut claimers = Vec::new();
        for _ in 0..3 {
            // Stores of their own, as three daemons have.
            let store = Store::open(&bench.settings).expect("the address is good");
            claimers.push(tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let claim = store.claim(BRIDGE, 0, 50, LEASE).await.expect("redis is there");
                    if claim.items.is_empty() {
                        return taken;
                    }
                    let ids: Vec<Id> = claim.items.iter().map(|item| item.id).collect();
                    let outcome = store.settle(&claim.lease, &ids).await.expect("redis is there");
                    assert_eq!((outcome.done, outcome.not_held.len()), (ids.len(), 0));
                    taken.extend(ids);
                }
            }));
        }
        let mut taken = Vec::new();
        for claimer in claimers {
            taken.extend(claimer.await.expect("no claimer fails"));
        }
        assert_eq!(taken.len(), 1_000);
        assert_eq!(taken.into_iter().collect::<HashSet<Id>>(), ids.into_iter().collect());
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn settling_needs_the_token() {
    bench(1, async |mut bench| {
        let item = Park { wait: Millis::ZERO, ..message() };
        bench.park(item.clone()).await;
        let stale = bench.claim_for(Millis(20)).await;
        bench.reap_one().await;
        let fresh = bench.claim_one().await;

        let outcome = bench.store.settle(&stale.lease, &[item.id]).await.expect("redis is there");
        assert_eq!((outcome.done, outcome.not_held), (0, vec![item.id]));
        assert_eq!(bench.depth().await.claimed, 1, "the old token let go of the new claim");
        let outcome = bench.store.release(&stale.lease, &[item.id]).await.expect("redis is there");
        assert_eq!((outcome.done, outcome.not_held.len()), (0, 0), "it was named once already");

        bench.settle_all(&fresh).await;
        // A second settle, as after a lost reply, is no complaint.
        let again = bench.store.settle(&fresh.lease, &[item.id]).await.expect("redis is there");
        assert!(again.not_held.is_empty());
        bench.is_empty().await;
    })
    .await;
}

/// B98.
#[tokio::test]
async fn a_lapsed_message_keeps_its_due_time_and_is_marked() {
    bench(1, async |mut bench| {
        let item = Park { wait: Millis::ZERO, ..message() };
        let parked = bench.park(item.clone()).await;
        for lapses in 0..3 {
            let claim = bench.claim_for(Millis(20)).await;
            let [claimed] = &claim.items[..] else { panic!("one message") };
            assert_eq!((claimed.id, claimed.due_ms, claimed.lapses), (item.id, parked.due_ms, lapses));
            bench.reap_one().await;
            assert_eq!(bench.scores("due").await, [(item.id.as_bytes().to_vec(), parked.due_ms)]);
        }
        let claim = bench.claim_one().await;
        assert_eq!(bench.store.reap(BRIDGE, 0, 100).await, Ok(0), "a running lease was reaped");
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

/// B97.
#[tokio::test]
async fn a_renewed_lease_does_not_lapse() {
    bench(1, async |mut bench| {
        bench.park(Park { wait: Millis::ZERO, ..message() }).await;
        let lease = Millis(400);
        let claim = bench.claim_for(lease).await;
        let begun = Instant::now();
        while begun.elapsed() < lease.to_std() * 3 {
            let outcome = bench.store.renew(&claim.lease).await.expect("redis is there");
            assert_eq!((outcome.done, outcome.not_held.len()), (1, 0));
            assert!(claim.lease.remaining() > claim.lease.length().to_std() / 2);
            assert_eq!(bench.store.reap(BRIDGE, 0, 100).await, Ok(0));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_given_back_is_pending_as_before() {
    bench(1, async |mut bench| {
        let item = Park { wait: Millis::ZERO, ..message() };
        let parked = bench.park(item.clone()).await;
        let claim = bench.claim_one().await;
        let outcome = bench.store.release(&claim.lease, &[item.id]).await.expect("redis is there");
        assert_eq!((outcome.done, outcome.not_held.len()), (1, 0));
        assert!(claim.lease.ids().is_empty());
        assert_eq!(bench.scores("due").await, [(item.id.as_bytes().to_vec(), parked.due_ms)]);
        // No mark of a lapse: it can still be cancelled for certain.
        assert_eq!(bench.store.cancel(BRIDGE, Target::Id(item.id)).await, Ok(Cancelled::Cancelled(item.id)));
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_claim_of_large_messages_gives_back_what_exceeds_its_bytes() {
    bench(1, async |mut bench| {
        let body = Bytes::from(vec![7; 9 << 20]);
        let items: Vec<Park> = (0..6)
            .map(|_| {
                let mut item = Park { wait: Millis::ZERO, ..message() };
                item.record.body = body.clone();
                item
            })
            .collect();
        bench.park_all(&items).await;
        bench.until("all are due", async |bench| bench.depth().await.overdue == 6).await;
        let claim = bench.claim().await;
        assert_eq!((claim.items.len(), claim.next_due_in), (4, Some(Millis::ZERO)));
        assert_eq!(bench.depth().await.pending, 2);
        bench.settle_all(&claim).await;
        let claim = bench.claim().await;
        assert_eq!((claim.items.len(), claim.next_due_in), (2, None));
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_message_whose_payload_was_deleted_by_hand_does_not_come_back_for_ever() {
    bench(1, async |mut bench| {
        let (lost, kept) = (message(), message());
        bench.park_all(&[lost.clone(), kept.clone()]).await;
        let payload = format!("{}:{{{BRIDGE}.0}}:m:{}", bench.settings.key_prefix, lost.id);
        let deleted: u64 = redis::cmd("DEL").arg(payload).query_async(&mut bench.raw).await.expect("redis is there");
        assert_eq!(deleted, 1, "the payload has another key than people are told");
        bench.all_due_at_once(&[lost.id, kept.id]).await;
        let claim = bench.claim().await;
        assert_eq!((claim.lost, claim.items.len(), claim.items[0].id), (1, 1, kept.id));
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn bytes_that_are_no_record_are_handed_over_whole() {
    bench(1, async |mut bench| {
        let item = message();
        bench.park(item.clone()).await;
        let payload = format!("{}:{{{BRIDGE}.0}}:m:{}", bench.settings.key_prefix, item.id);
        let () = redis::cmd("SET").arg(payload).arg("{json?}").query_async(&mut bench.raw).await.expect("it is set");
        bench.all_due_at_once(&[item.id]).await;
        let claim = bench.claim().await;
        let undecodable = claim.items[0].record.as_ref().expect_err("it is no record");
        assert_eq!(&undecodable.bytes[..], b"{json?}");
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

/// B107.
#[tokio::test]
async fn ten_thousand_due_at_once_are_drained_in_small_steps() {
    bench(4, async |mut bench| {
        let items: Vec<Park> = (0..10_000).map(|_| Park { wait: Millis(1), ..message() }).collect();
        let ids: HashSet<Id> = items.iter().map(|item| item.id).collect();
        bench.park_all(&items).await;
        let mut taken = HashSet::new();
        let mut slowest = Duration::ZERO;
        bench
            .until("all are out", async |bench| {
                for shard in 0..4 {
                    let begun = Instant::now();
                    let claim = bench.store.claim(BRIDGE, shard, 256, LEASE).await.expect("redis is there");
                    slowest = slowest.max(begun.elapsed());
                    assert!(claim.items.len() <= 256);
                    taken.extend(claim.items.iter().map(|item| item.id));
                    bench.settle_all(&claim).await;
                }
                taken.len() >= 10_000
            })
            .await;
        assert_eq!(taken, ids);
        println!("slowest claim of 256: {slowest:?}");
        bench.is_empty().await;
    })
    .await;
}

// === cancel and reschedule ===

#[tokio::test]
async fn cancelled_is_said_only_of_what_was_never_claimed() {
    bench(4, async |mut bench| {
        assert_eq!(bench.store.cancel(BRIDGE, Target::Id(Id::fresh())).await, Ok(Cancelled::Unknown));
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("nothing")).await, Ok(Cancelled::Unknown));

        // Both by id and by key, also where the key has put it in another shard than its id would.
        let item = keyed("order-9", Millis::ZERO);
        let id = item.id;
        let perhaps = |removed| Ok(Cancelled::PerhapsReleased { id, removed });
        bench.park(item).await;
        let claim = bench.claim_for(Millis(20)).await;
        assert_eq!(bench.store.cancel(BRIDGE, Target::Id(id)).await, perhaps(false));
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-9")).await, perhaps(false));
        assert_eq!(bench.depth().await.claimed, 1);
        bench.reap_one().await;
        assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-9")).await, perhaps(true));
        assert_eq!(bench.store.cancel(BRIDGE, Target::Id(id)).await, Ok(Cancelled::Unknown));
        drop(claim);
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_pending_message_can_be_moved() {
    bench(4, async |mut bench| {
        let item = keyed("order-1", Millis::days(7));
        bench.park(item.clone()).await;
        let now = bench.millis().await;
        let moved = bench.store.reschedule(BRIDGE, Target::Key("order-1"), Millis::days(1)).await;
        let Ok(Rescheduled::Moved { id, due_ms }) = moved else { panic!("{moved:?}") };
        assert_eq!(id, item.id);
        assert!((now + 86_400_000..now + 86_460_000).contains(&due_ms), "{due_ms}");
        assert!(matches!(
            bench.store.reschedule(BRIDGE, Target::Id(id), Millis::ZERO).await,
            Ok(Rescheduled::Moved { .. })
        ));
        let claim = bench.claim_one().await;
        let late = bench.store.reschedule(BRIDGE, Target::Id(id), Millis::days(1)).await;
        assert_eq!(late, Ok(Rescheduled::PerhapsReleased(id)));
        bench.settle_all(&claim).await;
        let gone = bench.store.reschedule(BRIDGE, Target::Key("order-1"), Millis::days(1)).await;
        assert_eq!(gone, Ok(Rescheduled::Unknown));
        bench.is_empty().await;
    })
    .await;
}

/// B93.
#[tokio::test]
async fn cancelling_among_large_messages_is_quick() {
    bench(1, async |bench| {
        let body = Bytes::from(vec![7; 64 << 10]);
        let items: Vec<Park> = (0..1_000)
            .map(|_| {
                let mut item = message();
                item.record.body = body.clone();
                item
            })
            .collect();
        bench.park_all(&items).await;
        // The quickest of a few: how fast it can be says what it must read; how slow it was says who else was busy.
        let mut quickest = Duration::MAX;
        for item in &items[..10] {
            let begun = Instant::now();
            assert_eq!(bench.store.cancel(BRIDGE, Target::Id(item.id)).await, Ok(Cancelled::Cancelled(item.id)));
            quickest = quickest.min(begun.elapsed());
        }
        // With WAITAOF and everysec it also waits for the disk, which is not what is measured here.
        let waits = bench.store.check().await.expect("redis is there").guarantee == Guarantee::Waited;
        assert!(waits || quickest < Duration::from_millis(50), "{quickest:?}");
    })
    .await;
}

// === bridges ===

#[tokio::test]
async fn every_bridge_with_records_is_known() {
    bench(2, async |bench| {
        let store = &bench.store;
        assert_eq!(store.bridges_with_records().await, Ok(vec![]));
        for bridge in ["zoo", "a.b-c_d"] {
            for outcome in store.park(bridge, &[message(), message()]).await {
                outcome.expect("redis is there");
            }
        }
        let id = message().id;
        let only = Park { id, ..message() };
        store.park("gone", &[only]).await.remove(0).expect("redis is there");
        assert_eq!(store.cancel("gone", Target::Id(id)).await, Ok(Cancelled::Cancelled(id)));
        assert_eq!(store.bridges_with_records().await, Ok(vec!["a.b-c_d".to_owned(), "zoo".to_owned()]));
    })
    .await;
}

// === faults ===

#[tokio::test]
async fn a_flush_of_all_scripts_is_not_noticed() {
    bench(1, async |mut bench| {
        let items: Vec<Park> = (0..10).map(|_| Park { wait: Millis::ZERO, ..message() }).collect();
        bench.flush_scripts().await;
        bench.park_all(&items[..5]).await;
        bench.flush_scripts().await;
        bench.park_all(&items[5..]).await;
        bench.until("all are due", async |bench| bench.depth().await.overdue == 10).await;
        bench.flush_scripts().await;
        let claim = bench.claim().await;
        assert_eq!(claim.items.len(), 10);
        bench.flush_scripts().await;
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

/// B133, B135.
#[tokio::test]
async fn killed_connections_are_replaced_by_the_next_call() {
    bench(1, async |mut bench| {
        for _ in 0..20 {
            let item = Park { wait: Millis::ZERO, ..message() };
            bench.park(item).await;
            assert!(bench.kill_connections().await > 0);
            let claim = bench.claim_one().await;
            bench.kill_connections().await;
            bench.settle_all(&claim).await;
            bench.kill_connections().await;
        }
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_quickly() {
    let settings = settings(&format!("redis://127.0.0.1:{}", free_port()), "dwell-test-nobody", 1);
    let store = Store::open(&settings).expect("the address is good");
    let begun = Instant::now();
    for _ in 0..100 {
        let error = store.check().await.expect_err("nobody is there");
        assert!(error.is_retryable() && matches!(error.kind(), Kind::Unreachable(_)), "{error}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let outcome = store.park(BRIDGE, &[message()]).await.remove(0);
    assert!(outcome.is_err_and(|error| error.is_retryable()));
}

#[tokio::test]
async fn an_address_that_makes_no_sense_is_refused_without_its_password() {
    let settings = settings("redis://:sesame@host/not-a-number", "dwell-test-nobody", 1);
    let error = Store::open(&settings).expect_err("it makes no sense");
    assert!(error.is_fatal(), "{error}");
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error}");
}

#[tokio::test]
async fn another_shard_count_is_refused() {
    bench(4, async |bench| {
        bench.store.check().await.expect("the first one decides");
        let other = config::Redis { shards: 5, ..bench.settings.clone() };
        let other = Store::open(&other).expect("the address is good");
        let error = other.check().await.expect_err("it is another count");
        assert!(error.is_fatal() && error.to_string().contains("shards is 4 in Redis and 5 here"), "{error}");
        let outcome = other.park(BRIDGE, &[message()]).await.remove(0);
        assert!(outcome.is_err_and(|error| error.is_fatal()), "it parked without a check");
    })
    .await;
}

#[tokio::test]
async fn a_key_of_the_wrong_type_stops_a_verb_before_it_writes() {
    bench(1, async |mut bench| {
        let item = Park { wait: Millis::ZERO, ..message() };
        bench.park(item.clone()).await;
        let lapsed = format!("{}:{{{BRIDGE}.0}}:lapsed", bench.settings.key_prefix);
        let () = redis::cmd("SET").arg(&lapsed).arg("x").query_async(&mut bench.raw).await.expect("it is set");
        let error = bench.store.claim(BRIDGE, 0, 10, LEASE).await.expect_err("a string is no hash");
        assert!(error.is_fatal() && error.to_string().contains("claim"), "{error}");
        assert_eq!(bench.scores("due").await.len(), 1, "it was half claimed");
        let () = redis::cmd("DEL").arg(&lapsed).query_async(&mut bench.raw).await.expect("it is deleted");
        let claim = bench.claim_one().await;
        bench.settle_all(&claim).await;
        bench.is_empty().await;
    })
    .await;
}

#[tokio::test]
async fn queues_that_may_be_bound_as_default_are_remembered_until_they_are_forgotten() {
    bench(4, async |mut bench| {
        let other = Store::open(&bench.settings).expect("the address is good");
        let (two, four) = ("orders.wait.2s".to_owned(), "orders.wait.4s".to_owned());
        assert_eq!(bench.store.remember_default(BRIDGE, Some(&two)).await, Ok(vec![two.clone()]));
        // Another daemon, with another file.
        assert_eq!(other.remember_default(BRIDGE, Some(&four)).await, Ok(vec![two.clone(), four.clone()]));
        assert_eq!(bench.store.remember_default(BRIDGE, Some(&two)).await, Ok(vec![two.clone(), four.clone()]));
        assert_eq!(
            bench.store.remember_default("bills", Some("b")).await,
            Ok(vec!["b".to_owned()]),
            "bridges are apart"
        );
        assert_eq!(bench.store.bridges_with_records().await, Ok(vec![]), "it is no record");
        assert_eq!(other.forget_defaults(BRIDGE, &[]).await, Ok(()));
        assert_eq!(other.forget_defaults(BRIDGE, std::slice::from_ref(&two)).await, Ok(()));
        assert_eq!(bench.store.remember_default(BRIDGE, Some(&four)).await, Ok(vec![four.clone()]));
        assert_eq!(bench.store.forget_defaults(BRIDGE, &[two, four]).await, Ok(()), "forgotten twice is forgotten");
        assert_eq!(bench.store.forget_defaults("bills", &["b".to_owned()]).await, Ok(()));
        bench.is_empty().await;
    })
    .await;
}

// === private servers ===

#[tokio::test]
async fn a_full_server_refuses_parks_and_nothing_else() {
    let Some(server) = Server::start("a_full_server_refuses_parks_and_nothing_else", &["--appendonly", "yes"]).await
    else {
        return;
    };
    let mut bench = server.bench(Durability::Fsync).await;
    let items: Vec<Park> = (0..4).map(|n| keyed(&format!("key-{n}"), Millis::ZERO)).collect();
    let later = message();
    bench.park_all(&items).await;
    bench.park(later.clone()).await;
    bench.config("maxmemory", "1").await;

    let error = bench.store.park(BRIDGE, &[message()]).await.remove(0).expect_err("it is full");
    assert!(error.is_full() && error.is_retryable(), "{error}");
    assert_eq!(bench.depth().await.pending, 5, "a refused park left something behind");

    let claim = bench.claim_for(Millis(50)).await;
    assert_eq!(claim.items.len(), 4);
    assert_eq!(bench.store.renew(&claim.lease).await.map(|outcome| outcome.done), Ok(4));
    assert_eq!(bench.store.release(&claim.lease, &[items[0].id]).await.map(|outcome| outcome.done), Ok(1));
    bench.until("three are reaped", async |bench| bench.store.reap(BRIDGE, 0, 100).await == Ok(3)).await;
    let moved = bench.store.reschedule(BRIDGE, Target::Id(later.id), Millis::days(2)).await;
    assert!(matches!(moved, Ok(Rescheduled::Moved { .. })), "{moved:?}");
    assert_eq!(bench.store.cancel(BRIDGE, Target::Id(later.id)).await, Ok(Cancelled::Cancelled(later.id)));
    let claim = bench.claim().await;
    assert_eq!(claim.items.len(), 4);
    bench.settle_all(&claim).await;
    bench.is_empty().await;

    bench.config("maxmemory", "0").await;
    bench.park(message()).await;
}

#[tokio::test]
async fn an_evicting_policy_is_refused() {
    let policy = ["--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let Some(server) = Server::start("an_evicting_policy_is_refused", &policy).await else { return };
    let mut bench = server.bench(Durability::Fsync).await;
    let error = bench.store.check().await.expect_err("it evicts");
    assert!(error.is_fatal() && error.to_string().contains("allkeys-lru"), "{error}");
    let outcome = bench.store.park(BRIDGE, &[message()]).await.remove(0);
    assert!(outcome.is_err_and(|error| error.is_fatal()));

    bench.config("maxmemory-policy", "volatile-lru").await;
    bench.until("it is accepted", async |bench| bench.store.check().await.is_ok()).await;
    // And refused again when somebody changes it under way.
    bench.config("maxmemory-policy", "allkeys-random").await;
    assert!(bench.store.check().await.is_err_and(|error| error.is_fatal()));
}

#[tokio::test]
async fn a_server_without_append_only_file_needs_durability_memory() {
    let name = "a_server_without_append_only_file_needs_durability_memory";
    let Some(server) = Server::start(name, &["--appendonly", "no"]).await else { return };
    let bench = server.bench(Durability::Fsync).await;
    let error = bench.store.check().await.expect_err("a restart would lose messages");
    assert!(error.is_fatal() && error.to_string().contains("append-only"), "{error}");
    let bench = server.bench(Durability::Memory).await;
    let health = bench.store.check().await.expect("it was asked for");
    assert_eq!((health.guarantee, health.policy.as_str()), (Guarantee::Memory, "noeviction"));
    assert!(health.skew_ms.abs() < 50, "one machine, one clock: {health:?}");
    bench.park(message()).await;
}

/// B104.
#[tokio::test]
async fn a_demoted_master_is_a_passing_condition_that_heals() {
    let name = "a_demoted_master_is_a_passing_condition_that_heals";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let mut bench = server.bench(Durability::Fsync).await;
    let item = message();
    bench.park(item.clone()).await;
    let nobody = free_port().to_string();
    bench.raw(&["REPLICAOF", "127.0.0.1", &nobody]).await;
    for _ in 0..3 {
        let error = bench.store.park(BRIDGE, &[message()]).await.remove(0).expect_err("it is a replica");
        assert!(error.is_retryable() && !error.is_fatal(), "{error}");
        let error = bench.store.claim(BRIDGE, 0, 10, LEASE).await.map(|claim| claim.items.len());
        assert!(error.as_ref().is_ok_and(|claimed| *claimed == 0) || error.is_err_and(|error| error.is_retryable()));
    }
    bench.raw(&["REPLICAOF", "NO", "ONE"]).await;
    let begun = Instant::now();
    let next = message();
    retried(&bench.store, next).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The connection for reads has pauses of its own.
    bench.until("reads are healed too", async |bench| bench.store.depth(BRIDGE).await.is_ok()).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(bench.depth().await.pending, 2, "an acknowledged message is gone");
}

#[tokio::test]
async fn acknowledged_messages_survive_the_death_of_the_server() {
    let name = "acknowledged_messages_survive_the_death_of_the_server";
    let arguments = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Server::start(name, &arguments).await else { return };
    let mut bench = server.bench(Durability::Fsync).await;
    let guarantee = bench.store.check().await.expect("it is fit").guarantee;
    assert!(matches!(guarantee, Guarantee::Always | Guarantee::Waited), "{guarantee:?}");
    let items: Vec<Park> = (0..500).map(|_| message()).collect();
    for some in items.chunks(50) {
        bench.park_all(some).await;
    }
    server.kill();
    let error = bench.store.depth(BRIDGE).await.expect_err("it is dead");
    assert!(error.is_retryable(), "{error}");
    server.restart().await;
    bench.until("it is back", async |bench| bench.store.check().await.is_ok()).await;
    assert_eq!(bench.store.depth(BRIDGE).await.map(|depth| depth.pending), Ok(500));
    // Asked again, as after a lost reply.
    for outcome in bench.store.park(BRIDGE, &items).await {
        assert!(outcome.expect("redis is back").already);
    }
}

#[tokio::test]
async fn a_server_that_hangs_is_a_timeout_and_heals() {
    let name = "a_server_that_hangs_is_a_timeout_and_heals";
    let Some(server) = Server::start(name, &["--appendonly", "yes", "--appendfsync", "always"]).await else { return };
    let bench = server.bench(Durability::Fsync).await;
    let short = config::Redis { timeout: Millis(300), ..bench.settings.clone() };
    let store = Store::open(&short).expect("the address is good");
    let item = message();
    store.check().await.expect("it is fit");
    store.park(BRIDGE, &[message()]).await.remove(0).expect("it is there");

    server.signal("-STOP");
    let error = store.claim(BRIDGE, 0, 1, LEASE).await.expect_err("it hangs");
    assert!(error.is_retryable() && matches!(error.kind(), Kind::Timeout(_)), "{error}");
    let error = store.park(BRIDGE, std::slice::from_ref(&item)).await.remove(0).expect_err("it hangs");
    assert!(error.is_retryable(), "{error}");
    server.signal("-CONT");

    // What was sent before may have run since; parked again it is one message all the same.
    let begun = Instant::now();
    retried(&store, item).await;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(bench.depth().await.pending, 2);
}

#[tokio::test]
async fn a_tls_address_of_a_plain_server_is_an_error_and_no_panic() {
    let name = "a_tls_address_of_a_plain_server_is_an_error_and_no_panic";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let url = format!("rediss://127.0.0.1:{}/0", server.port);
    let store = Store::open(&settings(&url, "dwell-test-tls", 1)).expect("the address is good");
    store.check().await.expect_err("it speaks no TLS");
}

/// With `appendfsync everysec` a write waits for the disk for up to a second; many bridges must not wait in a row.
#[tokio::test]
async fn bridges_share_one_wait_for_the_disk() {
    let name = "bridges_share_one_wait_for_the_disk";
    let Some(server) = Server::start(name, &["--appendonly", "yes", "--appendfsync", "everysec"]).await else { return };
    let bench = server.bench(Durability::Fsync).await;
    bench.store.check().await.expect("it is fit");
    let begun = Instant::now();
    let mut parks = Vec::new();
    for bridge in 0..20 {
        let store = bench.store.clone();
        parks.push(tokio::spawn(async move {
            store.park(&format!("bridge-{bridge}"), &[message()]).await.remove(0).expect("redis is there");
        }));
    }
    for park in parks {
        park.await.expect("every park succeeds");
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(bench.store.bridges_with_records().await.map(|bridges| bridges.len()), Ok(20));
}

#[tokio::test]
async fn a_replica_that_is_missing_is_not_taken_for_granted() {
    let name = "a_replica_that_is_missing_is_not_taken_for_granted";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let bench = server.bench(Durability::Replicas(1)).await;
    let item = message();
    let error = bench.store.park(BRIDGE, std::slice::from_ref(&item)).await.remove(0).expect_err("there is no replica");
    assert!(error.is_retryable() && matches!(error.kind(), Kind::NotDurable(_)), "{error}");

    let Some(replica) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let master = server.port.to_string();
    replica.bench(Durability::Memory).await.raw(&["REPLICAOF", "127.0.0.1", &master]).await;
    // The same item again: it is there already, and now it is durable too.
    assert!(retried(&bench.store, item).await.already);
    let error = replica.bench(Durability::Memory).await.store.check().await.expect_err("it is a replica");
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test]
async fn what_was_written_but_not_durable_and_is_out_already_is_not_parked_again() {
    let name = "what_was_written_but_not_durable_and_is_out_already_is_not_parked_again";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let mut bench = server.bench(Durability::Replicas(1)).await;
    let mut items = [Park { wait: Millis::ZERO, ..keyed("order-1", Millis::ZERO) }, message()];
    for outcome in bench.store.park(BRIDGE, &items).await.into_iter().zip(&mut items) {
        let (Err(error), item) = outcome else { panic!("there is no replica") };
        assert!(matches!(error.kind(), Kind::NotDurable(_)), "{error}");
        assert!(matches!(error.before(), Before::Written(_)), "{error:?}");
        item.before = error.before();
    }
    let claim = bench.claim_one().await;
    assert_eq!(claim.items.len(), 1);
    bench.settle_all(&claim).await;

    // The released one is done with; the waiting one still needs its replica.
    let again = bench.store.park(BRIDGE, &items).await;
    assert!(again[0].as_ref().is_ok_and(|parked| parked.already), "{again:?}");
    assert!(matches!(again[1].as_ref().map_err(dwell::store::Error::kind), Err(Kind::NotDurable(_))), "{again:?}");
    assert_eq!((bench.depth().await.pending, bench.claim().await.items.len()), (1, 0), "there is a second copy");

    // On another connection nobody knows what became of the first one: it comes out marked.
    bench.kill_connections().await;
    loop {
        let error = bench.store.park(BRIDGE, &items[..1]).await.remove(0).expect_err("there is no replica");
        if matches!(error.kind(), Kind::NotDurable(_)) {
            assert!(matches!(error.before(), Before::Written(_)) && error.before() != items[0].before, "{error:?}");
            break;
        }
        assert!(matches!(error.kind(), Kind::Unreachable(_)), "{error:?}");
        items[0].before = error.before();
    }
    let claim = bench.claim_one().await;
    assert!(claim.items[0].record.as_ref().is_ok_and(|record| record.meta.redelivered), "{claim:?}");
}

#[tokio::test]
async fn a_park_that_replaces_and_is_not_durable_is_told_from_one_that_wrote_nothing() {
    let name = "a_park_that_replaces_and_is_not_durable_is_told_from_one_that_wrote_nothing";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let bench = server.bench(Durability::Replicas(1)).await;
    let mut old = keyed("order-1", Millis::days(1));
    let new = keyed("order-1", Millis::days(2));
    old.before = bench.store.park(BRIDGE, &[old.clone()]).await.remove(0).expect_err("there is no replica").before();
    bench.store.park(BRIDGE, std::slice::from_ref(&new)).await.remove(0).expect_err("there is no replica");
    // Replaced meanwhile: it must not take its place back.
    assert!(bench.store.park(BRIDGE, &[old]).await.remove(0).is_ok_and(|parked| parked.already));
    assert_eq!(bench.store.cancel(BRIDGE, Target::Key("order-1")).await, Ok(Cancelled::Cancelled(new.id)));
}

#[tokio::test]
async fn a_store_without_its_replicas_is_not_fit() {
    let name = "a_store_without_its_replicas_is_not_fit";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let mut bench = server.bench(Durability::Replicas(1)).await;
    let error = bench.store.check().await.expect_err("there is no replica");
    assert!(error.is_retryable() && error.to_string().contains("0 replicas are connected"), "{error}");
    bench.store.park(BRIDGE, &[message()]).await.remove(0).expect_err("there is no replica");

    let Some(replica) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let master = server.port.to_string();
    replica.bench(Durability::Memory).await.raw(&["REPLICAOF", "127.0.0.1", &master]).await;
    // The last park was not durable, which the next one mends.
    retried(&bench.store, message()).await;
    bench.until("it is fit", async |bench| bench.store.check().await.is_ok()).await;
}

#[tokio::test]
async fn missing_rights_and_wrong_passwords_need_a_person() {
    let name = "missing_rights_and_wrong_passwords_need_a_person";
    let Some(server) = Server::start(name, &["--appendonly", "yes"]).await else { return };
    let mut bench = server.bench(Durability::Fsync).await;
    bench.raw(&["ACL", "SETUSER", "weak", "on", ">sesame", "~*", "+@all", "-evalsha"]).await;
    let store_of = |user: &str| {
        let url = format!("redis://{user}@127.0.0.1:{}/0", server.port);
        Store::open(&settings(&url, "dwell-test-rights", 1)).expect("the address is good")
    };
    for (user, outcome) in [
        ("weak:sesame", store_of("weak:sesame").claim(BRIDGE, 0, 1, LEASE).await.map(|claim| claim.items.len())),
        ("weak:wrong", store_of("weak:wrong").claim(BRIDGE, 0, 1, LEASE).await.map(|claim| claim.items.len())),
    ] {
        let error = outcome.expect_err(user);
        assert!(error.is_fatal() && matches!(error.kind(), Kind::Denied(_)), "{error}");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("sesame") && !text.contains("wrong@"), "{text}");
    }
    bench.raw(&["ACL", "SETUSER", "weak", "+evalsha"]).await;
    assert!(store_of("weak:sesame").claim(BRIDGE, 0, 1, LEASE).await.is_ok());
}

/// The figure of the README, and a guard against a layout that forgets it.
#[tokio::test]
async fn a_pending_message_costs_little_more_than_300_bytes_above_what_it_carries() {
    const COUNT: usize = 20_000;
    let name = "a_pending_message_costs_little_more_than_300_bytes_above_what_it_carries";
    let Some(server) = Server::start(name, &["--appendonly", "no"]).await else { return };
    let mut bench = server.bench(Durability::Memory).await;
    bench.store.check().await.expect("it is fit");
    let before = bench.used_memory().await;
    for some in (0..COUNT).collect::<Vec<_>>().chunks(1_000) {
        let items: Vec<Park> = some
            .iter()
            .map(|_| {
                let mut item = Park { wait: Millis::days(7), ..message() };
                item.record.body = Bytes::from(vec![b'x'; 256]);
                item.record.properties = Bytes::from(vec![b'p'; 64]);
                item.record.meta.routing_key = "order.4711.close".into();
                item
            })
            .collect();
        bench.park_all(&items).await;
    }
    let each = (bench.used_memory().await - before) / COUNT as u64;
    let carried = 256 + 64 + 16;
    println!("{each} bytes a message, {} above body, properties and routing key", each - carried);
    // 300 is the goal; a hash table that has just doubled costs up to 16 bytes more for a while.
    assert!(each - carried <= 320, "{each} bytes a message");
}

// === the bench ===

/// A store with a prefix of its own, and a connection beside it that sees what it did.
struct Bench {
    store: Store,
    settings: config::Redis,
    raw: MultiplexedConnection,
}

/// Runs one test on the shared server and removes its keys, also when it fails.
async fn bench<F: Future<Output = ()>>(shards: u16, test: impl FnOnce(Bench) -> F) {
    let Ok(url) = std::env::var("DWELL_TEST_REDIS_URL") else {
        panic!("DWELL_TEST_REDIS_URL is not set: run make services");
    };
    let prefix = format!("dwell-test-{}", Id::fresh());
    let bench = Bench::new(&settings(&url, &prefix, shards)).await;
    let mut raw = bench.raw.clone();
    let outcome = AssertUnwindSafe(test(bench)).catch_unwind().await;
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(format!("{prefix}*")).query_async(&mut raw).await.expect("keys");
    for some in keys.chunks(1_000) {
        let () = redis::cmd("UNLINK").arg(some).query_async(&mut raw).await.expect("keys are removed");
    }
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

fn settings(url: &str, prefix: &str, shards: u16) -> config::Redis {
    config::Redis {
        url: Secret::new(url),
        key_prefix: prefix.to_owned(),
        durability: Durability::Fsync,
        shards,
        timeout: Millis::seconds(5),
    }
}

impl Bench {
    async fn new(settings: &config::Redis) -> Bench {
        let store = Store::open(settings).expect("the address is good");
        let client = redis::Client::open(settings.url.expose()).expect("the address is good");
        // Patient: on a busy machine the shared server may be slow to answer.
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(10)))
            .set_response_timeout(Some(Duration::from_secs(10)));
        let raw = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("Redis is not there: run make services");
        Bench { store, settings: settings.clone(), raw }
    }

    async fn park(&self, item: Park) -> Parked {
        self.park_all(&[item]).await.remove(0)
    }

    async fn park_all(&self, items: &[Park]) -> Vec<Parked> {
        let outcomes = self.store.park(BRIDGE, items).await;
        outcomes.into_iter().map(|outcome| outcome.expect("redis is there")).collect()
    }

    /// All that is due in shard 0.
    async fn claim(&self) -> Claim {
        self.store.claim(BRIDGE, 0, 1_000, LEASE).await.expect("redis is there")
    }

    async fn claim_one(&mut self) -> Claim {
        self.claim_for(LEASE).await
    }

    /// Asks all shards until something is due.
    async fn claim_for(&mut self, lease: Millis) -> Claim {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            for shard in 0..self.store.shards() {
                let claim = self.store.claim(BRIDGE, shard, 1_000, lease).await.expect("redis is there");
                if !claim.items.is_empty() {
                    return claim;
                }
            }
            assert!(Instant::now() < deadline, "nothing fell due");
        }
    }

    async fn settle_all(&self, claim: &Claim) {
        let ids: Vec<Id> = claim.items.iter().map(|item| item.id).collect();
        let outcome = self.store.settle(&claim.lease, &ids).await.expect("redis is there");
        assert_eq!((outcome.done, outcome.not_held), (ids.len(), vec![]));
    }

    async fn reap_one(&mut self) {
        self.until("one lease lapses", async |bench| {
            let mut reaped = 0;
            for shard in 0..bench.store.shards() {
                reaped += bench.store.reap(BRIDGE, shard, 100).await.expect("redis is there");
            }
            reaped == 1
        })
        .await;
    }

    /// Claims what is due and lets it lapse.
    async fn lapse(&mut self) {
        self.claim_for(Millis(1)).await;
        self.reap_one().await;
    }

    async fn depth(&self) -> dwell::store::Depth {
        self.store.depth(BRIDGE).await.expect("redis is there")
    }

    /// Nothing of the bridge is left: no entry, no payload, no mark, no key.
    async fn is_empty(&mut self) {
        let pattern = format!("{}:{{*", self.settings.key_prefix);
        let keys: Vec<Vec<u8>> =
            redis::cmd("KEYS").arg(pattern).query_async(&mut self.raw).await.expect("redis is there");
        let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
        assert!(keys.is_empty(), "left behind: {keys:?}");
    }

    /// Redis' clock in µs.
    async fn micros(&mut self) -> u64 {
        let (seconds, micros): (u64, u64) =
            redis::cmd("TIME").query_async(&mut self.raw).await.expect("redis is there");
        seconds * 1_000_000 + micros
    }

    async fn millis(&mut self) -> u64 {
        self.micros().await / 1_000
    }

    /// Members and scores of one sorted set of shard 0.
    async fn scores(&mut self, set: &str) -> Vec<(Vec<u8>, u64)> {
        let key = format!("{}:{{{BRIDGE}.0}}:{set}", self.settings.key_prefix);
        redis::cmd("ZRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .query_async(&mut self.raw)
            .await
            .expect("redis is there")
    }

    /// Gives pending messages of shard 0 one due time, which is over.
    async fn all_due_at_once(&mut self, ids: &[Id]) {
        let due = self.millis().await - 1;
        let key = format!("{}:{{{BRIDGE}.0}}:due", self.settings.key_prefix);
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("ZADD").arg(&key).arg("XX").arg(due).arg(id.as_bytes());
        }
        let _: redis::Value = pipe.query_async(&mut self.raw).await.expect("redis is there");
    }

    async fn flush_scripts(&mut self) {
        self.raw(&["SCRIPT", "FLUSH"]).await;
    }

    /// Kills the connections of this bench's store.
    async fn kill_connections(&mut self) -> usize {
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut self.raw).await.expect("redis is there");
        let name = format!(" name={}:", self.settings.key_prefix);
        let ours = list.lines().filter(|line| line.contains(&name));
        let ids: Vec<&str> =
            ours.filter_map(|line| line.split(' ').find_map(|part| part.strip_prefix("id="))).collect();
        for id in &ids {
            let _: redis::RedisResult<redis::Value> =
                redis::cmd("CLIENT").arg("KILL").arg("ID").arg(id).query_async(&mut self.raw).await;
        }
        ids.len()
    }

    async fn raw(&mut self, words: &[&str]) {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let _: redis::Value = command.query_async(&mut self.raw).await.expect("redis obeys");
    }

    async fn config(&mut self, name: &str, value: &str) {
        self.raw(&["CONFIG", "SET", name, value]).await;
    }

    async fn used_memory(&mut self) -> u64 {
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut self.raw).await.expect("redis is there");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("it is in there");
        line.trim().parse().expect("it is a number")
    }

    /// Waits for a condition, with a deadline.
    async fn until(&mut self, what: &str, mut condition: impl AsyncFnMut(&mut Bench) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !condition(self).await {
            assert!(Instant::now() < deadline, "in vain: {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Parks one message as intake does: the same item again after every retryable error.
async fn retried(store: &Store, item: Park) -> Parked {
    let mut items = [item];
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match store.park(BRIDGE, &items).await.remove(0) {
            Ok(parked) => return parked,
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                if error.before() != Before::Nothing {
                    items[0].before = error.before();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A message that is due in a day.
fn message() -> Park {
    let meta = Meta {
        bridge: BRIDGE.into(),
        exchange: BRIDGE.into(),
        routing_key: "order.close".into(),
        taken_in_ms: 1_764_547_200_123,
        asked_due_ms: 1_764_633_600_123,
        ..Meta::default()
    };
    let record = Record { meta, properties: Bytes::from_static(b"\x00\x00"), body: Bytes::from_static(b"hello") };
    Park { id: Id::fresh(), wait: Millis::days(1), record, before: Before::Nothing }
}

fn keyed(key: &str, wait: Millis) -> Park {
    let mut item = Park { wait, ..message() };
    item.record.meta.key = Some(key.to_owned());
    item
}

// === private servers ===

struct Server {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Server {
    /// `None`, and a line in the list of skipped tests, where there is no `redis-server`.
    async fn start(test: &str, arguments: &[&str]) -> Option<Server> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        match Server::spawn(&directory, port, &arguments) {
            Ok(process) => {
                let server = Server { process, port, directory, arguments };
                server.ready().await;
                Some(server)
            }
            Err(error) => {
                skip(test, &format!("redis-server cannot be started: {error}"));
                None
            }
        }
    }

    fn spawn(directory: &tempfile::TempDir, port: u16, arguments: &[String]) -> std::io::Result<Child> {
        let program = std::env::var("DWELL_TEST_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
        Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(directory.path())
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    }

    async fn ready(&self) {
        let client = redis::Client::open(self.url()).expect("the address is good");
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Ok(mut connection) = client.get_multiplexed_async_connection().await {
                let pong: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut connection).await;
                if pong.is_ok() {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "the private server did not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    async fn bench(&self, durability: Durability) -> Bench {
        let settings = settings(&self.url(), "dwell", 1);
        // Short, so that waiting for a replica in vain does not take long.
        let timeout = Millis::seconds(3);
        Bench::new(&config::Redis { durability, timeout, ..settings }).await
    }

    /// As `kill -9` does.
    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.process.id().to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()), "kill {signal}");
    }

    async fn restart(&mut self) {
        self.process = Server::spawn(&self.directory, self.port, &self.arguments).expect("it started before");
        self.ready().await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Says that a test was skipped, where the last line of `make test` counts it.
fn skip(test: &str, reason: &str) {
    let mut line = String::new();
    let _ = writeln!(line, "SKIPPED {test}: {reason}");
    eprint!("{line}");
    if let Ok(file) = std::env::var("DWELL_TEST_SKIPS") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

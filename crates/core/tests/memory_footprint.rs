//! What a waiting event of a memory queue takes in memory beyond its packed bytes, counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::value::RawValue;
use tidegate_core::memory::{Config, Durability, Epoch, Event, EventFields, Queue};
use tidegate_core::{QueueName, Timestamp};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is passed on to the system's allocator; only sizes are counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The worst of several depths, since the index doubles: right after that it has the most room that is not used.
#[test]
fn a_waiting_event_takes_little_beyond_its_bytes() {
    let name = QueueName::new("q").unwrap();
    let config = Config { max_queue_depth: 10_000_000, ..Config::default() };
    let payload = RawValue::from_string(format!("\"{}\"", "x".repeat(198))).unwrap();
    let now = Timestamp::UNIX_EPOCH;
    let before = ALLOCATED.load(Ordering::Relaxed);
    let mut queue = Queue::new(name, config, Durability::Snapshot, Epoch::FIRST, now);
    let (mut bytes, mut count) = (0, 0);
    let mut worst = 0;
    for depth in [10_000, 28_672, 28_673, 57_344, 57_345, 100_000] {
        while count < depth {
            let id = format!("evt_{count:016}");
            let pattern = ["invoice.created", "payment.received", "order.shipped"][count % 3];
            let event = Event::new(&EventFields::new(&id, pattern, &payload), now).unwrap();
            bytes += event.packed().len();
            queue.publish(event, now).unwrap();
            count += 1;
        }
        let beyond = (ALLOCATED.load(Ordering::Relaxed) - before - bytes) / count;
        println!("{depth} events: {beyond} bytes each beyond their packed {}", bytes / count);
        worst = worst.max(beyond);
    }
    assert!(worst <= 110, "{worst} bytes per waiting event");
    drop(queue);
    assert!(ALLOCATED.load(Ordering::Relaxed) < before + 4_096, "all of it is given back");
}

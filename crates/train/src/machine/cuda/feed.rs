//! Brings samples into the order and the type that the device has them in.

use std::num::NonZero;
use std::thread;

use tightfit_conv::problem::Storage;
use tightfit_plan::Order;

/// Places of a sample that are brought into the device's order at once, which stay in a core's cache.
const PLACES: usize = 1024;
/// Most threads that turn samples.
const THREADS: usize = 8;

/// Writes samples, one after another, as the device has them; `to` is as long as they are there.
pub(super) fn encode(samples: &[f32], order: Order, storage: Storage, to: &mut [u8]) {
    if !order.is_turned() {
        return storage.encode_to(samples, to);
    }
    let sample = order.channels * order.area;
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS);
    let share = (samples.len() / sample).div_ceil(threads).max(1) * sample;
    thread::scope(|scope| {
        for (from, to) in samples.chunks(share).zip(to.chunks_mut(share * storage.size())) {
            scope.spawn(move || encode_share(from, order, storage, to));
        }
    });
}

/// The same for the samples of one thread.
fn encode_share(samples: &[f32], order: Order, storage: Storage, to: &mut [u8]) {
    let Order { channels, area } = order;
    let mut turned = vec![0.0; PLACES * channels];
    let bytes = channels * storage.size();
    for (from, to) in samples.chunks(channels * area).zip(to.chunks_mut(area * bytes)) {
        for (i, to) in to.chunks_mut(PLACES * bytes).enumerate() {
            let places = to.len() / bytes;
            for (channel, plane) in from.chunks(area).enumerate() {
                let plane = plane[i * PLACES..].iter().take(places);
                turned.iter_mut().skip(channel).step_by(channels).zip(plane).for_each(|(to, from)| *to = *from);
            }
            storage.encode_to(&turned[..places * channels], to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_lie_in_the_order_of_the_device() {
        for (channels, area, count) in [(3, 2, 4), (5, 2 * PLACES + 7, 3), (3, PLACES, 20), (1, 9, 2), (4, 1, 3)] {
            let order = Order { channels, area };
            let samples: Vec<f32> = (0..channels * area * count).map(|i| (i % 251) as f32).collect();
            for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
                let mut bytes = vec![0; samples.len() * storage.size()];
                encode(&samples, order, storage, &mut bytes);
                let wanted = if order.is_turned() { order.to_device(&samples) } else { samples.clone() };
                assert!(storage.decode(&bytes) == wanted, "{order:?} in {storage:?}");
            }
        }
    }
}

//! Simulates a schedule on its streams with given costs: its time, and its memory over time.
//!
//! ```text
//! compute    |-- conv1 --|-- conv2 --|......|-- conv3 --     waits for the copy of what conv3 overwrites
//! offload                |-- map 1 --------|
//! ```
//!
//! Time advances from event to event. A copy is slower during a copy in the other direction. A layer is slower during any copy. The upload of a
//! mini-batch counts as a layer. Several computing lanes share the device evenly. The device's throughput is then [`CostModel::side_by_side`] times
//! its throughput with one lane. Any larger gain of small mini-batches is not predicted.

use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Nanos};

use crate::schedule::clock::STREAMS;
use crate::step::Step;
use crate::{Action, Block, CostModel, Direction, InstructionId, KindBytes, Schedule, Stream, footprint};

/// When an instruction ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// From the beginning of the training step.
    pub start: Nanos,
    /// Equal to `start` for instructions that take no time.
    pub end: Nanos,
}

/// Live bytes from a moment until the next level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// From the beginning of the training step.
    pub at: Nanos,
    /// Bytes of live blocks.
    pub live: KindBytes,
}

/// A wait of the compute stream for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The instruction that waits.
    #[serde(rename = "step")]
    pub instruction: InstructionId,
    /// The instruction it waits for.
    pub waits_for: InstructionId,
    /// The time of the wait.
    pub span: Span,
}

/// One simulated training step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulation {
    /// End of the last stream.
    pub time: Nanos,
    /// Time of all computations, on their lanes, without any copies.
    pub compute: Nanos,
    /// Time during which at least one copy runs.
    pub copying: Nanos,
    /// Time added by copies: unhidden copies, and the slowdown of concurrent computations.
    pub exposed: Nanos,
    /// One span per instruction of the schedule.
    pub spans: Vec<Span>,
    /// Live bytes over time, in order; the last level holds to the end.
    pub levels: Vec<Level>,
    /// Every wait of the compute stream that took time, in order.
    pub stalls: Vec<Stall>,
}

impl Simulation {
    /// The time average of live bytes as counted by `count`; the final level if the step takes no time.
    pub fn average(&self, count: impl Fn(&KindBytes) -> Bytes) -> Bytes {
        let ends = self.levels.iter().skip(1).map(|level| level.at).chain([self.time]);
        let weighted =
            |(level, end): (&Level, Nanos)| u128::from(count(&level.live).0) * u128::from((end - level.at).0);
        let sum: u128 = self.levels.iter().zip(ends).map(weighted).sum();
        let last = self.levels.last().map_or(0, |level| u128::from(count(&level.live).0));
        Bytes(u64::try_from(sum.checked_div(u128::from(self.time.0)).unwrap_or(last)).unwrap_or(u64::MAX))
    }

    /// The maximum of live bytes as counted by `count`.
    pub fn maximum(&self, count: impl Fn(&KindBytes) -> Bytes) -> Bytes {
        self.levels.iter().map(|level| count(&level.live)).max().unwrap_or_default()
    }
}

/// A stream's current work.
#[derive(Clone, Copy, Debug)]
enum Running {
    /// Nanoseconds left, without copies.
    Computing { left: f64 },
    /// Bytes left.
    Copying { direction: Direction, left: f64 },
}

/// A stream working through its instructions.
struct Track {
    stream: Stream,
    /// Its instructions in order, as indices into the schedule.
    places: Vec<usize>,
    next: usize,
    running: Option<(usize, Running)>,
    /// The moment at which it became ready to continue.
    since: f64,
}

/// Simulates a schedule of a step, with the copy rates of `costs`.
///
/// An endless wait leaves its stream unfinished; the checker rejects such schedules.
///
/// - Cost: O(instructions × streams).
///
/// # Panics
/// If the schedule refers to operations or tensors that the step lacks.
pub fn simulate(step: &Step, schedule: &Schedule, costs: &CostModel) -> Simulation {
    let mut run = Run::new(step, schedule, costs);
    let mut now = 0.0;
    loop {
        while run.begin_next(now) {}
        let ends = run.ends(now);
        let Some(next) = ends.into_iter().flatten().min_by(f64::total_cmp) else { break };
        run.advance(now, next, ends);
        now = next;
    }
    run.finish(now)
}

struct Run<'a> {
    step: &'a Step,
    schedule: &'a Schedule,
    costs: &'a CostModel,
    tracks: [Track; STREAMS],
    started: Vec<f64>,
    ended: Vec<Option<f64>>,
    live: KindBytes,
    levels: Vec<(f64, KindBytes)>,
    stalls: Vec<Stall>,
    compute: f64,
    /// Time saved by computations side by side.
    saved: f64,
    copying: f64,
}

impl<'a> Run<'a> {
    fn new(step: &'a Step, schedule: &'a Schedule, costs: &'a CostModel) -> Run<'a> {
        let all = || schedule.instructions.iter().enumerate();
        let of_stream = |stream| all().filter(move |(_, instruction)| instruction.stream == stream);
        let track = |stream| Track {
            stream,
            places: of_stream(stream).map(|(place, _)| place).collect(),
            next: 0,
            running: None,
            since: 0.0,
        };
        let mut live = KindBytes::default();
        for block in schedule.blocks.iter().filter(|block| block.resident) {
            live.add(step.kind(block.holds), length(block));
        }
        Run {
            step,
            schedule,
            costs,
            tracks: Stream::ALL.map(track),
            started: vec![0.0; schedule.instructions.len()],
            ended: vec![None; schedule.instructions.len()],
            live,
            levels: vec![(0.0, live)],
            stalls: Vec::new(),
            compute: 0.0,
            saved: 0.0,
            copying: 0.0,
        }
    }

    /// Starts the next instruction of the first idle stream that can continue; returns whether one did.
    fn begin_next(&mut self, now: f64) -> bool {
        (0..self.tracks.len()).any(|track| self.begin(track, now))
    }

    fn begin(&mut self, track: usize, now: f64) -> bool {
        let Track { stream, places, next, running: None, since } = &self.tracks[track] else { return false };
        let (Some(&place), since) = (places.get(*next), *since) else { return false };
        let stream = *stream;
        let running = match &self.schedule.instructions[place].action {
            Action::Allocate(block) => {
                let block = &self.schedule.blocks[block.0];
                self.live.add(self.step.kind(block.holds), length(block));
                self.levels.push((now, self.live));
                None
            }
            Action::Release(block) => {
                let block = &self.schedule.blocks[block.0];
                self.live.remove(self.step.kind(block.holds), length(block));
                self.levels.push((now, self.live));
                None
            }
            Action::Wait(on) => {
                if self.ended[on.0].is_none() {
                    return false;
                }
                let waits_for_copy = !self.schedule.instructions[on.0].stream.is_lane();
                if stream == Stream::Compute && waits_for_copy && now > since {
                    let span = Span { start: whole(since), end: whole(now) };
                    self.stalls.push(Stall { instruction: InstructionId(place), waits_for: *on, span });
                }
                None
            }
            Action::Compute(compute) => {
                let left = self.step.time(compute, self.costs.launch).0 as f64;
                self.compute += left;
                Some(Running::Computing { left })
            }
            Action::Offload(block, _) => Some(self.copy(Direction::ToHost, self.schedule.blocks[block.0].bytes)),
            Action::Prefetch(_, block) => Some(self.copy(Direction::FromHost, self.schedule.blocks[block.0].bytes)),
        };
        let is_wait = matches!(self.schedule.instructions[place].action, Action::Wait(_));
        self.started[place] = if is_wait { since } else { now };
        let track = &mut self.tracks[track];
        track.next += 1;
        match running {
            Some(running) => track.running = Some((place, running)),
            None => {
                self.ended[place] = Some(now);
                track.since = now;
            }
        }
        true
    }

    /// Starts a copy; its fixed overhead counts as additional bytes.
    fn copy(&self, direction: Direction, bytes: u64) -> Running {
        let launch = self.costs.launch.as_secs() * self.rate(direction, false);
        Running::Copying { direction, left: bytes as f64 + launch }
    }

    /// Bytes per second of a copy.
    fn rate(&self, direction: Direction, both: bool) -> f64 {
        let alone = self.costs.copy_rate(direction);
        if both { alone.min(self.costs.both_rate) } else { alone }
    }

    /// Whether copies run in both directions.
    fn both(&self) -> bool {
        let runs = |way| {
            let matches = |track: &Track| matches!(track.running, Some((_, Running::Copying { direction, .. })) if direction == way);
            self.tracks.iter().any(matches)
        };
        runs(Direction::ToHost) && runs(Direction::FromHost)
    }

    /// The slowdown factor of a computation while others share the device.
    fn share(&self) -> f64 {
        let computes = |track: &&Track| matches!(track.running, Some((_, Running::Computing { .. })));
        match self.tracks.iter().filter(computes).count() {
            0 | 1 => 1.0,
            several => several as f64 / self.costs.side_by_side,
        }
    }

    /// The current slowdown factor of computations by copies.
    fn slower(&self) -> f64 {
        let copies = self.tracks.iter().any(|track| matches!(track.running, Some((_, Running::Copying { .. }))));
        if copies { 1.0 + self.costs.beside_copies } else { 1.0 }
    }

    /// For each stream: when its current work ends if nothing else begins or ends.
    fn ends(&self, now: f64) -> [Option<f64>; STREAMS] {
        let (both, slower) = (self.both(), self.slower() * self.share());
        std::array::from_fn(|track| match self.tracks[track].running? {
            (_, Running::Computing { left }) => Some(now + left * slower),
            (_, Running::Copying { direction, left }) => Some(now + left / self.rate(direction, both) * 1e9),
        })
    }

    /// Advances to `next`, the earliest end returned by [`Run::ends`].
    fn advance(&mut self, now: f64, next: f64, ends: [Option<f64>; STREAMS]) {
        let (both, alone, share) = (self.both(), self.slower(), self.share());
        let slower = alone * share;
        if share > 1.0 {
            self.saved += (next - now) / alone * (self.costs.side_by_side - 1.0);
        }
        let [to_host, from_host] = [Direction::ToHost, Direction::FromHost].map(|way| self.rate(way, both));
        let mut copies = false;
        for (track, end) in self.tracks.iter_mut().zip(ends) {
            match &mut track.running {
                None => continue,
                Some((_, Running::Computing { left })) => *left -= (next - now) / slower,
                Some((_, Running::Copying { direction, left })) => {
                    copies = true;
                    let rate = if *direction == Direction::ToHost { to_host } else { from_host };
                    *left -= (next - now) / 1e9 * rate;
                }
            }
            // The end time decides, not the work left: rounding leaves a remainder.
            if end.is_some_and(|end| end <= next)
                && let Some((place, _)) = track.running.take()
            {
                self.ended[place] = Some(next);
                track.since = next;
            }
        }
        if copies {
            self.copying += next - now;
        }
    }

    fn finish(self, now: f64) -> Simulation {
        let end = |place: usize| whole(self.ended[place].unwrap_or(now));
        let spans = (0..self.schedule.instructions.len())
            .map(|place| Span { start: whole(self.started[place]), end: end(place) });
        let mut levels: Vec<Level> = Vec::new();
        for (at, live) in self.levels {
            let level = Level { at: whole(at), live };
            levels.push(level);
        }
        let (time, compute) = (whole(now), whole(self.compute - self.saved));
        Simulation {
            time,
            compute,
            copying: whole(self.copying),
            exposed: time - compute,
            spans: spans.collect(),
            levels,
            stalls: self.stalls,
        }
    }
}

/// Bytes that a block occupies in the arena.
fn length(block: &Block) -> u64 {
    footprint(block.bytes)
}

fn whole(nanos: f64) -> Nanos {
    Nanos(nanos.round() as u64)
}

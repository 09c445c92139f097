//! How long a schedule takes and what is in memory when: three streams, with given costs.
//!
//! ```text
//! compute    |-- conv1 --|-- conv2 --|......|-- conv3 --     waits for the copy of what conv3 overwrites
//! offload                |-- map 1 --------|
//! ```
//!
//! Time goes from one event to the next. A copy is slower for as long as one the other way runs beside it, a layer for as
//! long as there are copies. The upload of a mini-batch counts as a layer's work.

use serde::{Deserialize, Serialize};

use super::step::Step;
use super::{Action, Block, CostModel, Direction, InstructionId, KindBytes, Schedule, Stream, footprint};
use crate::{Bytes, Nanos};

/// When an instruction ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// From the beginning of the training step.
    pub start: Nanos,
    /// The same as `start` for those that take no time.
    pub end: Nanos,
}

/// Live bytes from a moment on, until that of the next level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// From the beginning of the training step.
    pub at: Nanos,
    /// Bytes of live blocks.
    pub live: KindBytes,
}

/// The compute stream standing still for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The instruction that waits.
    #[serde(rename = "step")]
    pub instruction: InstructionId,
    /// The instruction that it waits for.
    pub waits_for: InstructionId,
    /// From when to when.
    pub span: Span,
}

/// One training step in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulation {
    /// When the last stream has ended.
    pub time: Nanos,
    /// What all computations take while nothing is copied.
    pub compute: Nanos,
    /// Time in which something is copied, both directions at once counted once.
    pub copying: Nanos,
    /// Time by which the step is longer than that: copies that nothing hides, and what they slow down.
    pub exposed: Nanos,
    /// By instruction of the schedule.
    pub spans: Vec<Span>,
    /// Live bytes over time, by rising moments; the last holds to the end.
    pub levels: Vec<Level>,
    /// Every wait of the compute stream that took time.
    pub stalls: Vec<Stall>,
}

impl Simulation {
    /// Live bytes weighted by time, as `count` counts them; the level at the end where the step takes no time.
    pub fn average(&self, count: impl Fn(&KindBytes) -> Bytes) -> Bytes {
        let ends = self.levels.iter().skip(1).map(|level| level.at).chain([self.time]);
        let weighted =
            |(level, end): (&Level, Nanos)| u128::from(count(&level.live).0) * u128::from((end - level.at).0);
        let sum: u128 = self.levels.iter().zip(ends).map(weighted).sum();
        let last = self.levels.last().map_or(0, |level| u128::from(count(&level.live).0));
        Bytes(u64::try_from(sum.checked_div(u128::from(self.time.0)).unwrap_or(last)).unwrap_or(u64::MAX))
    }

    /// The most live bytes, as `count` counts them.
    pub fn maximum(&self, count: impl Fn(&KindBytes) -> Bytes) -> Bytes {
        self.levels.iter().map(|level| count(&level.live)).max().unwrap_or_default()
    }
}

/// Work that a stream is at.
#[derive(Clone, Copy, Debug)]
enum Running {
    /// Nanoseconds left, if nothing is copied.
    Computing { left: f64 },
    /// Bytes left.
    Copying { direction: Direction, left: f64 },
}

/// A stream on its way through its instructions.
struct Lane {
    stream: Stream,
    /// Its instructions in order, as places in the schedule.
    places: Vec<usize>,
    next: usize,
    running: Option<(usize, Running)>,
    /// The moment from which it has been ready to go on.
    since: f64,
}

/// Runs a schedule of a step, with copies at the rates of `costs`.
///
/// A wait for an instruction that never ends is left standing, and with it everything after: the checker refuses such a schedule.
///
/// - Cost: O(instructions × streams).
///
/// # Panics
/// If the schedule names operations or tensors that the step has not.
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
    lanes: [Lane; 3],
    started: Vec<f64>,
    ended: Vec<Option<f64>>,
    live: KindBytes,
    levels: Vec<(f64, KindBytes)>,
    stalls: Vec<Stall>,
    compute: f64,
    copying: f64,
}

impl<'a> Run<'a> {
    fn new(step: &'a Step, schedule: &'a Schedule, costs: &'a CostModel) -> Run<'a> {
        let all = || schedule.instructions.iter().enumerate();
        let of = |stream| all().filter(move |(_, instruction)| instruction.stream == stream);
        let lane = |stream| Lane {
            stream,
            places: of(stream).map(|(place, _)| place).collect(),
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
            lanes: Stream::ALL.map(lane),
            started: vec![0.0; schedule.instructions.len()],
            ended: vec![None; schedule.instructions.len()],
            live,
            levels: vec![(0.0, live)],
            stalls: Vec::new(),
            compute: 0.0,
            copying: 0.0,
        }
    }

    /// Lets the first idle stream that can go on with its next instruction do so; tells whether one did.
    fn begin_next(&mut self, now: f64) -> bool {
        (0..self.lanes.len()).any(|lane| self.begin(lane, now))
    }

    fn begin(&mut self, lane: usize, now: f64) -> bool {
        let Lane { stream, places, next, running: None, since } = &self.lanes[lane] else { return false };
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
                if stream == Stream::Compute && now > since {
                    let span = Span { start: whole(since), end: whole(now) };
                    self.stalls.push(Stall { instruction: InstructionId(place), waits_for: *on, span });
                }
                None
            }
            Action::Compute(compute) => {
                let left = self.step.time(compute).0 as f64;
                self.compute += left;
                Some(Running::Computing { left })
            }
            Action::Offload(block, _) => Some(self.copy(Direction::ToHost, self.schedule.blocks[block.0].bytes)),
            Action::Prefetch(_, block) => Some(self.copy(Direction::FromHost, self.schedule.blocks[block.0].bytes)),
        };
        let is_wait = matches!(self.schedule.instructions[place].action, Action::Wait(_));
        self.started[place] = if is_wait { since } else { now };
        let lane = &mut self.lanes[lane];
        lane.next += 1;
        match running {
            Some(running) => lane.running = Some((place, running)),
            None => {
                self.ended[place] = Some(now);
                lane.since = now;
            }
        }
        true
    }

    /// A copy; what it costs beside its bytes counts as more of them.
    fn copy(&self, direction: Direction, bytes: u64) -> Running {
        let launch = self.costs.launch.as_secs() * self.rate(direction, false);
        Running::Copying { direction, left: bytes as f64 + launch }
    }

    /// Bytes a second of a copy.
    fn rate(&self, direction: Direction, both: bool) -> f64 {
        let alone = self.costs.copy_rate(direction);
        if both { alone.min(self.costs.both_rate) } else { alone }
    }

    /// Whether copies run both ways.
    fn both(&self) -> bool {
        let runs = |way| {
            let is =
                |lane: &Lane| matches!(lane.running, Some((_, Running::Copying { direction, .. })) if direction == way);
            self.lanes.iter().any(is)
        };
        runs(Direction::ToHost) && runs(Direction::FromHost)
    }

    /// How many times as long as alone a computation takes now.
    fn slower(&self) -> f64 {
        let copies = self.lanes.iter().any(|lane| matches!(lane.running, Some((_, Running::Copying { .. }))));
        if copies { 1.0 + self.costs.beside_copies } else { 1.0 }
    }

    /// By stream: the moment at which what runs will end if nothing else begins or ends.
    fn ends(&self, now: f64) -> [Option<f64>; 3] {
        let (both, slower) = (self.both(), self.slower());
        std::array::from_fn(|lane| match self.lanes[lane].running? {
            (_, Running::Computing { left }) => Some(now + left * slower),
            (_, Running::Copying { direction, left }) => Some(now + left / self.rate(direction, both) * 1e9),
        })
    }

    /// Lets time pass until `next`, the first of the ends that [`Run::ends`] gives now.
    fn advance(&mut self, now: f64, next: f64, ends: [Option<f64>; 3]) {
        let (both, slower) = (self.both(), self.slower());
        let [to_host, from_host] = [Direction::ToHost, Direction::FromHost].map(|way| self.rate(way, both));
        let mut copies = false;
        for (lane, end) in self.lanes.iter_mut().zip(ends) {
            match &mut lane.running {
                None => continue,
                Some((_, Running::Computing { left })) => *left -= (next - now) / slower,
                Some((_, Running::Copying { direction, left })) => {
                    copies = true;
                    let rate = if *direction == Direction::ToHost { to_host } else { from_host };
                    *left -= (next - now) / 1e9 * rate;
                }
            }
            // Not by what is left: rounding leaves something.
            if end.is_some_and(|end| end <= next)
                && let Some((place, _)) = lane.running.take()
            {
                self.ended[place] = Some(next);
                lane.since = next;
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
        let (time, compute) = (whole(now), whole(self.compute));
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

/// Bytes that a block takes of the arena.
fn length(block: &Block) -> u64 {
    footprint(block.bytes)
}

fn whole(nanos: f64) -> Nanos {
    Nanos(nanos.round() as u64)
}

//! One total for all kernels of a device (WD). The library owns the memory, and the program provides none.
//!
//! ```text
//! first step    | kernel a, in all of it | kernel b, in all of it | ..      one after another, also across streams
//! then          | a's | b's | c's | ..                         | left |     each in its own segment, streams overlap
//! later         a new kernel, or a known one on another stream, takes a part of the rest; else it has all of it for a while
//! ```
//!
//! The first step is over when as many executions have passed without a new kernel as it took to meet all kernels. The
//! total is then divided exactly among the kernels that ran since, each weighted by its number of runs. Nobody waits for
//! the device: streams wait for each other by events, and only if they use the same memory. Under capture the events become
//! edges of the graph, and the segment of a captured kernel belongs to it alone. A graph that was captured before the
//! division, or when no segment was left, uses all of the memory at each launch. The program must not launch it at the same
//! time as other work on the device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tightfit_conv::Configuration;
use tightfit_conv::backend::Scale;
use tightfit_conv::optimize::{SearchOptions, allot};
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::Handle;
use tightfit_cuda::{GuestProgram, Host, Lane};
use tightfit_units::{Bytes, Nanos};

use super::order::Order;
use crate::kernel::{ActiveChoice, Kernel, TotalOptions};
use crate::lock::lock;
use crate::log::trace;
use crate::reason::{Reason, failed};
use crate::session::Session;

/// The alignment of segments.
const SEGMENT_ALIGNMENT: u64 = 256;

/// A device's memory, and who owns which part.
struct Total {
    memory: DevicePtr,
    bytes: u64,
    used: u64,
    members: Vec<Member>,
    is_divided: bool,
    executions: u64,
    /// The execution that met the last new kernel.
    newest: u64,
    order: Order,
}

/// A kernel with its segments.
struct Member {
    kernel: Arc<Kernel>,
    /// Executions since the last new kernel was met.
    calls: u64,
    segments: Vec<Segment>,
}

/// One kernel's share on one lane.
struct Segment {
    /// None until the kernel first runs in it.
    lane: Option<Lane>,
    /// `None` if nothing can be set up in the memory left: the kernel then takes turns in all of the memory.
    part: Option<TotalPart>,
    /// Executions.
    turns: u64,
}

/// A part of the memory, and the choice that runs in it.
#[derive(Clone)]
struct TotalPart {
    configuration: Arc<Configuration>,
    offset: u64,
}

impl TotalPart {
    /// Where the next part may begin.
    fn end(&self) -> u64 {
        self.offset + round_up(self.configuration.workspace())
    }
}

/// The totals of all devices.
#[derive(Default)]
pub struct Totals(Mutex<HashMap<usize, Arc<Mutex<Total>>>>);

impl Totals {
    /// Allocates the memory of a device, once. Returns the bytes that it has, which may be others if there was a total
    /// before.
    ///
    /// # Errors
    /// [`Reason::Capture`] if a capture forbids it, [`Reason::Failed`] if the device has too little.
    pub fn reserve(&self, host: &Host, device: usize, bytes: Bytes, is_capturing: bool) -> Result<Bytes, Reason> {
        // Locked meanwhile, so that two threads do not allocate it twice.
        let mut totals = lock(&self.0);
        if let Some(total) = totals.get(&device).cloned() {
            drop(totals);
            return Ok(Bytes(lock(&total).bytes));
        }
        if is_capturing {
            return Err(Reason::Capture);
        }
        let total = Total {
            memory: host.arena(device, bytes).map_err(failed)?,
            bytes: bytes.0,
            used: 0,
            members: Vec::new(),
            is_divided: false,
            executions: 0,
            newest: 0,
            order: Order::default(),
        };
        totals.insert(device, Arc::new(Mutex::new(total)));
        Ok(bytes)
    }

    /// Runs a kernel in its part of the memory: `run` is given the program and the address of its workspace.
    ///
    /// The device's total is locked while `run` enqueues, so that no other thread enqueues before the event is
    /// recorded. Enqueuing waits for no other thread.
    ///
    /// # Errors
    /// [`Reason::Failed`] if nothing could be enqueued.
    ///
    /// # Safety
    /// `session` belongs to `handle`, which is alive and used on this thread.
    pub unsafe fn run<T>(
        &self,
        host: &Host,
        handle: Handle,
        kernel: &Arc<Kernel>,
        session: &mut Session,
        (scale, base): (Scale, usize),
        run: impl FnOnce(&GuestProgram, DevicePtr) -> T,
    ) -> Result<T, Reason> {
        let device = kernel.question.device;
        let total = lock(&self.0).get(&device).cloned().ok_or(Reason::Failed)?;
        let mut total = lock(&total);
        // SAFETY: forwarded to the caller.
        let stream = unsafe { host.stream(handle) }.map_err(failed)?;
        // SAFETY: the program keeps its handle's stream alive.
        let lane = unsafe { host.lane(stream) }.map_err(failed)?;
        let (mut part, mut is_exclusive) = total.turn(kernel, lane)?;
        let problem = &kernel.question.problem;
        let set_up =
            |session: &mut Session, configuration: &Configuration| session.program(problem, configuration, scale, base);
        let program = match set_up(session, &part.configuration) {
            Ok(program) => program,
            Err(error) => {
                trace!("{problem}: {}", error.chain());
                (part, is_exclusive) = total.refuse(kernel, lane)?;
                set_up(session, &part.configuration).map_err(|error| failed(error.chain()))?
            }
        };
        // SAFETY: as above.
        unsafe { total.order.begin(stream, lane, is_exclusive) }.map_err(failed)?;
        let result = run(&program, total.memory.offset(usize::try_from(part.offset).map_err(failed)?));
        // SAFETY: as above.
        unsafe { total.order.end(host, device, stream, lane, is_exclusive) }.map_err(failed)?;
        Ok(result)
    }
}

fn round_up(bytes: Bytes) -> u64 {
    bytes.0.next_multiple_of(SEGMENT_ALIGNMENT)
}

fn share(kernel: &Kernel) -> Result<&TotalOptions, Reason> {
    kernel.share().ok_or(Reason::Failed)
}

/// Records the choice for a kernel. Its memory is ours, so it fits whatever was reported to the program.
fn record(kernel: &Kernel, configuration: &Arc<Configuration>) {
    if let Err(needed) = kernel.change(ActiveChoice::Shared(configuration.clone())) {
        trace!("{}: {needed} more than was reported", kernel.question.problem);
    }
}

/// All of the memory, for one execution.
fn whole(kernel: &Kernel) -> Result<TotalPart, Reason> {
    Ok(TotalPart { configuration: share(kernel)?.provisional.clone(), offset: 0 })
}

impl Total {
    /// Where a kernel runs this time, and whether it needs the memory alone. Under capture the total is not divided,
    /// because that would set every configuration up there.
    fn turn(&mut self, kernel: &Arc<Kernel>, lane: Lane) -> Result<(TotalPart, bool), Reason> {
        self.executions += 1;
        let place = match self.members.iter().position(|member| Arc::ptr_eq(&member.kernel, kernel)) {
            Some(place) => place,
            None => {
                self.newest = self.executions;
                self.members.iter_mut().for_each(|member| member.calls = 0);
                self.members.push(Member { kernel: kernel.clone(), calls: 0, segments: Vec::new() });
                self.members.len() - 1
            }
        };
        self.members[place].calls += 1;
        if !self.is_divided {
            if lane.capture.is_some() || self.executions < 2 * self.newest {
                return Ok((whole(kernel)?, true));
            }
            self.divide();
        }
        let segments = &mut self.members[place].segments;
        if let Some(segment) = segments.iter_mut().find(|segment| segment.lane.is_none_or(|own| own == lane)) {
            segment.lane = Some(lane);
            segment.turns += 1;
            return match &segment.part {
                Some(part) => Ok((part.clone(), false)),
                None => Ok((whole(kernel)?, true)),
            };
        }
        // A new kernel: the fastest configuration that fits the memory left.
        let left = self.bytes.saturating_sub(self.used);
        let fitting = share(kernel)?.front.iter().rev().find(|one| round_up(one.workspace()) <= left);
        match fitting {
            Some(configuration) => {
                let part = self.take(kernel, Arc::new(configuration.clone()));
                self.members[place].segments.push(Segment { lane: Some(lane), part: Some(part.clone()), turns: 1 });
                Ok((part, false))
            }
            None => Ok((whole(kernel)?, true)),
        }
    }

    /// Takes bytes for a kernel's configuration from the memory left, which must be enough.
    fn take(&mut self, kernel: &Kernel, configuration: Arc<Configuration>) -> TotalPart {
        record(kernel, &configuration);
        let part = TotalPart { configuration, offset: self.used };
        self.used = part.end();
        part
    }

    /// Where a kernel runs if its configuration cannot be set up, for example for its addresses' alignment: it uses the
    /// configuration set up when it was decided, in the memory left, or alternating in all of the memory. The failed one is
    /// not tried again, and if the fallback fails too, no more bytes are taken.
    fn refuse(&mut self, kernel: &Arc<Kernel>, lane: Lane) -> Result<(TotalPart, bool), Reason> {
        let TotalPart { configuration, .. } = whole(kernel)?;
        let is_its_own = |segment: &Segment| segment.lane == Some(lane);
        let of_kernel = |member: &Member| Arc::ptr_eq(&member.kernel, kernel);
        let member = self.members.iter().position(of_kernel);
        let found =
            member.and_then(|member| Some((member, self.members[member].segments.iter().position(is_its_own)?)));
        let Some((member, segment)) = found else { return Ok((whole(kernel)?, true)) };
        let Segment { part, turns, .. } = &mut self.members[member].segments[segment];
        let (refused, turns) = (part.take(), *turns);
        // A kernel without a part was refused in all of the memory.
        if refused.as_ref().is_none_or(|refused| refused.configuration == configuration) {
            return Ok((whole(kernel)?, true));
        }
        // Work may still be running in these bytes, so no other kernel may use them.
        if let Some(refused) = refused.filter(|refused| turns == 1 && refused.end() == self.used) {
            self.used = refused.offset;
        }
        if round_up(configuration.workspace()) > self.bytes.saturating_sub(self.used) {
            record(kernel, &configuration);
            return Ok((whole(kernel)?, true));
        }
        let part = self.take(kernel, configuration);
        self.members[member].segments[segment].part = Some(part.clone());
        Ok((part, false))
    }

    /// Assigns every kernel that ran lately its segment; kernels without known times keep taking turns.
    fn divide(&mut self) {
        self.is_divided = true;
        let mut members: Vec<&mut Member> = Vec::new();
        let mut fronts = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.calls > 0) {
            let Some(TotalOptions { front, .. }) = member.kernel.share() else { continue };
            if !front.is_empty() {
                let weighted = |one: &Configuration| (Bytes(round_up(one.workspace())), one.time() * member.calls);
                fronts.push(front.iter().map(weighted).collect::<Vec<(Bytes, Nanos)>>());
                members.push(member);
            }
        }
        let allotment = match allot(&fronts, Bytes(self.bytes), &SearchOptions::default()) {
            Ok(allotment) => allotment,
            Err(error) => {
                trace!("kernels take turns in the total: {error}");
                return;
            }
        };
        for (member, &choice) in members.iter_mut().zip(&allotment.choice) {
            let Some(TotalOptions { front, .. }) = member.kernel.share() else { continue };
            let part = TotalPart { configuration: Arc::new(front[choice].clone()), offset: self.used };
            self.used = part.end();
            trace!("{}: {} at {} of the total", member.kernel.question.problem, part.configuration, part.offset);
            record(&member.kernel, &part.configuration);
            member.segments.push(Segment { lane: None, part: Some(part), turns: 0 });
        }
        trace!("{} kernels use {} of {}", fronts.len(), Bytes(self.used), Bytes(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::samples::{configuration, planned, question, terms};
    use crate::kernel::{Answer, Kernels};
    use crate::limits::Limits;
    use crate::settings::Limit;

    #[test]
    fn a_kernel_that_refuses_everything_stops_taking_memory() {
        let (provisional, fast) = (Arc::new(configuration("gemm", 1, 512)), configuration("fft", 1, 1024));
        let share = TotalOptions { provisional: provisional.clone(), front: vec![fast.clone()] };
        let planned = planned(question("gemm"), terms(Limit::Total(Bytes(4096))), Answer::Shared(share));
        let kernel = Kernels::default().keep(planned, &Limits::default(), false);
        let mut total = Total {
            memory: DevicePtr(0),
            bytes: 4096,
            used: 0,
            members: Vec::new(),
            is_divided: true,
            executions: 0,
            newest: 0,
            order: Order::default(),
        };
        let lane = Lane { stream: 1, capture: None };
        let (part, is_exclusive) = total.turn(&kernel, lane).unwrap();
        assert_eq!((part.configuration, is_exclusive, total.used), (Arc::new(fast), false, 1024));
        let (part, is_exclusive) = total.refuse(&kernel, lane).unwrap();
        assert_eq!((part.configuration, is_exclusive, total.used), (provisional.clone(), false, 512));
        for execution in 0..20 {
            total.turn(&kernel, lane).unwrap();
            let (part, is_exclusive) = total.refuse(&kernel, lane).unwrap();
            assert_eq!((&part.configuration, is_exclusive), (&provisional, true), "{execution}");
            assert_eq!(total.used, 512, "{execution}");
        }
    }
}

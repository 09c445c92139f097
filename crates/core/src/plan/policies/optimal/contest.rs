//! Plans of several kinds share the time: those of whole mini-batches, and those with a stretch in parts.
//!
//! ```text
//! keep      everything, of each kind; no plan of a kind is faster than its operations with the fastest algorithms
//! begin     each kind that may still win, in at most half the time and the work of one search
//! place     the most promising kind; then others, as long as their bounds are below what is placed, with less work where
//!           there is little to gain
//! ```
//!
//! So parts are tried wherever they may be faster, whatever the budget, and take little time where they are not.

use super::hunt::{Hunt, Models};
use super::least::Least;
use super::parts::Division;
use super::try_keeping_everything;
use crate::plan::InParts;
use crate::plan::draft::Drafter;
use crate::plan::policies::{Floors, Trials};
use crate::plan::stop::End;
use crate::{Error, Nanos};

/// A kind leads if its decisions are faster by more than one part in so many: then it gets all the time that is left.
const LEAD: u64 = 50;

/// A search that may gain less than one part in so many gets one part of the work in [`LITTLE`].
const GAIN: u64 = 50;
const LITTLE: u64 = 8;

/// Where nothing of a kind fits, its smallest plan is a beginning if it may gain one part in so many.
const MUCH: u64 = 10;

/// A kind with a stretch in parts is given up if its decisions are slower than what is placed by more than one part in so
/// many.
const HOPELESS: u64 = 20;

/// Plans whole mini-batches, unless everything fits, and stretches in parts that may be faster.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set and nobody waits for a plan.
pub(super) fn hold(
    drafter: &Drafter<'_>,
    floors: &Floors,
    keeps_all: bool,
    trials: &mut Trials<'_>,
) -> Result<(), Error> {
    let divisions = Division::all(drafter);
    let drafters = divisions.iter().map(|division| division.drafter(drafter)).collect::<Result<Vec<_>, _>>()?;
    let divided = divisions.iter().zip(&drafters).map(|(division, drafter)| Kind { drafter, division: Some(division) });
    let mut kinds: Vec<Kind<'_>> = divided.collect();
    for kind in &kinds {
        let mut own = Trials::new(kind.drafter);
        if kind.may_win(trials) && try_keeping_everything(kind.drafter, &mut own) {
            kind.join(drafter, own, trials);
        }
        drafter.end.proceed()?;
    }
    kinds.retain(|kind| kind.may_win(trials));
    if !keeps_all && floors.whole().peak <= drafter.options.budget {
        kinds.insert(0, Kind { drafter, division: None });
    }
    let models: Vec<Models<'_>> = kinds.iter().map(|kind| Models::of(kind.drafter)).collect();
    // No kind is worth more work than the step with the fewest operations.
    let visits = models.iter().map(Models::visits).min().unwrap_or_default();
    let begin = visits / (kinds.len() as u64).clamp(1, 2);
    let mut hunts: Vec<(&Kind<'_>, Hunt<'_, '_>)> = Vec::new();
    for (kind, models) in kinds.iter().zip(&models) {
        if kind.division.is_some() && drafter.end.is_over() && trials.best().is_some() {
            break;
        }
        let end = if kinds.len() > 1 { drafter.end.part(2 * kinds.len()) } else { drafter.end };
        let least = floors.optimal.as_ref().filter(|_| kind.division.is_none());
        hunts.push((kind, Hunt::begun(models, least, trials.time(), begin, end)?));
    }
    hunts.sort_by_key(|(_, hunt)| hunt.found());
    let found: Vec<Nanos> = hunts.iter().map(|(_, hunt)| hunt.found()).collect();
    let before = trials.time();
    for (place, (kind, hunt)) in hunts.into_iter().enumerate() {
        let leads = found.get(place + 1).is_none_or(|next| found[place].0 + found[place].0 / LEAD < next.0);
        let end = if leads { drafter.end } else { drafter.end.part(2) };
        // Nothing is placed yet that only the search for plans has found, or so much may be gained.
        let may_gain = |part| {
            let gains = |best: Nanos| hunt.bound().0 + best.0 / part < best.0;
            trials.time() == before || trials.time().is_some_and(gains)
        };
        let visits = if may_gain(GAIN) { visits } else { visits / LITTLE };
        let is_pressed = may_gain(MUCH);
        kind.placed(hunt, (drafter, floors), trials, Share { visits, end, is_pressed })?;
    }
    Ok(())
}

/// What a kind may take to place its plans.
struct Share<'e> {
    visits: u64,
    end: End<'e>,
    /// Whether it is worth trying from the decisions that need the fewest bytes where nothing else fits.
    is_pressed: bool,
}

/// A kind of plans.
struct Kind<'k> {
    drafter: &'k Drafter<'k>,
    /// `None` for whole mini-batches.
    division: Option<&'k Division>,
}

impl<'k> Kind<'k> {
    /// Whether its operations with the fastest algorithms take less time than what is placed.
    fn may_win(&self, trials: &Trials<'_>) -> bool {
        let fastest = self.division.map_or(Nanos::ZERO, |division| division.fastest);
        trials.best().is_none_or(|best| fastest < best.time)
    }

    /// Decisions with a stretch in parts that need as few bytes as possible, for where nothing else fits; `None` if there are
    /// none, or no time.
    fn least(&self, end: End<'_>) -> Option<Least> {
        self.division.filter(|_| !end.is_over()).and_then(|_| super::least(self.drafter))
    }

    /// Places the plans of a search, unless they are certain or likely to be slower than what is placed.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and nobody waits for a plan.
    fn placed<'m>(
        &self,
        hunt: Hunt<'m, 'k>,
        (whole, floors): (&Drafter<'_>, &Floors),
        trials: &mut Trials<'_>,
        Share { visits, end, is_pressed }: Share<'k>,
    ) -> Result<(), Error> {
        let best = trials.best().map(|best| best.time);
        if best.is_some_and(|best| hunt.bound() >= best) {
            // What is placed may be as fast as that.
            if self.division.is_none() {
                trials.add_bound(hunt.lower_bound());
            }
            return Ok(());
        }
        if self.division.is_none() {
            let bound = hunt.placed(Some(floors), trials, visits, end)?;
            bound.into_iter().for_each(|bound| trials.add_bound(bound));
            return Ok(());
        }
        let is_hopeless = |best: Nanos| !hunt.is_empty() && hunt.found().0 > best.0 + best.0 / HOPELESS;
        if best.is_some_and(|best| is_hopeless(best) || whole.end.is_over()) {
            return Ok(());
        }
        let models = hunt.models;
        let mut own = Trials::against(self.drafter, best);
        let mut bound = hunt.placed(None, &mut own, visits, end)?;
        if is_pressed
            && own.best().is_none()
            && let Some(least) = self.least(end)
        {
            own.consider("least", least.draft.clone());
            bound = Hunt::begun(models, Some(&least), best, visits, end)?.placed(None, &mut own, visits, end)?;
        }
        bound.into_iter().for_each(|bound| own.add_bound(bound));
        self.join(whole, own, trials);
        Ok(())
    }

    /// Lets the best plan with a stretch in parts take part in the trials of the step itself.
    fn join(&self, whole: &Drafter<'_>, own: Trials<'_>, trials: &mut Trials<'_>) {
        if let Some(found) = self.division.and_then(|division| division.outcome(whole, self.drafter, own)) {
            let name = found.bound.in_parts.as_ref().map_or_else(String::new, InParts::words);
            found.join(trials, &name);
        }
    }
}

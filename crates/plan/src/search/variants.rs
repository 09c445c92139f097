//! Divides the planning time between variants of a step: whole mini-batches, and stretches in parts.
//!
//! ```text
//! keep      try to keep everything in each variant: no plan of a variant is faster than its operations with the fastest algorithms
//! begin     start a search in each variant that may still win, with at most half the time and the work of one search
//! place     place plans of the most promising variant, then of others while their bounds are below the best placed plan;
//!           variants that can gain little get less work
//! ```
//!
//! Parts are therefore tried at any budget if they may be faster, and cost little planning time if they are not.

use tightfit_units::{Error, Nanos};

use crate::InParts;
use crate::attempts::Attempts;
use crate::memory::arena::Drafter;
use crate::search::floors::Floors;
use crate::search::least::{Least, least};
use crate::search::parts::Division;
use crate::search::plan_search::{Models, PlanSearch};
use crate::stop::End;

/// A variant leads if its decisions are at least this much faster than the next variant's. A leader gets all the remaining time.
const MIN_LEAD_PERCENT: u64 = 2;

/// A search that can gain less than this gets an eighth of the work.
const FULL_WORK_GAIN_PERCENT: u64 = 2;
const LITTLE_GAIN_WORK_DIVISOR: u64 = 8;

/// If no decisions of a variant fit, its smallest plan is a starting point, provided that it may gain this much.
const RETRY_GAIN_PERCENT: u64 = 10;

/// A variant with a stretch in parts is dropped if its decisions are slower than the best placed plan by more than this.
const MAX_SLOWDOWN_PERCENT: u64 = 5;

/// Tries the smallest plans, and everything resident. Then searches for plans of whole mini-batches unless everything fits, and for plans of
/// stretches in parts that may be faster.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
pub(super) fn search(drafter: &Drafter<'_>, floors: &Floors, attempts: &mut Attempts<'_>) -> Result<(), Error> {
    attempts.consider("least", floors.whole().clone());
    let keeps_all = attempts.keep_everything();
    if let Some(least) = floors.in_parts.as_ref().filter(|_| !keeps_all) {
        least.clone().join(attempts, "least in parts");
    }
    let divisions = Division::all(drafter);
    let drafters = divisions.iter().map(|division| division.drafter(drafter)).collect::<Result<Vec<_>, _>>()?;
    let divided =
        divisions.iter().zip(&drafters).map(|(division, drafter)| Variant { drafter, division: Some(division) });
    let mut variants: Vec<Variant<'_>> = divided.collect();
    for variant in &variants {
        let mut own = Attempts::new(variant.drafter);
        if variant.may_win(attempts) && own.keep_everything() {
            variant.join(drafter, own, attempts);
        }
        drafter.end.proceed()?;
    }
    variants.retain(|variant| variant.may_win(attempts));
    if !keeps_all && floors.whole().peak <= drafter.options.budget {
        variants.insert(0, Variant { drafter, division: None });
    }
    let models: Vec<Models<'_>> = variants.iter().map(|variant| Models::of(variant.drafter)).collect();
    // No variant gets more work than the step with the fewest operations.
    let visits = models.iter().map(Models::visits).min().unwrap_or_default();
    let begin = visits / (variants.len() as u64).clamp(1, 2);
    let mut searches: Vec<(&Variant<'_>, PlanSearch<'_, '_>)> = Vec::new();
    for (variant, models) in variants.iter().zip(&models) {
        if variant.division.is_some() && drafter.end.is_over() && attempts.best().is_some() {
            break;
        }
        let end = if variants.len() > 1 { drafter.end.part(2 * variants.len()) } else { drafter.end };
        let least = floors.optimal.as_ref().filter(|_| variant.division.is_none());
        searches.push((variant, PlanSearch::begun(models, least, attempts.time(), begin, end)?));
    }
    searches.sort_by_key(|(_, search)| search.found());
    let found: Vec<Nanos> = searches.iter().map(|(_, search)| search.found()).collect();
    for (place, (variant, search)) in searches.into_iter().enumerate() {
        let leads =
            found.get(place + 1).is_none_or(|next| found[place].0 + found[place].0 * MIN_LEAD_PERCENT / 100 < next.0);
        let end = if leads { drafter.end } else { drafter.end.part(2) };
        let may_gain = |percent| attempts.time().is_none_or(|best| search.bound().0 + best.0 * percent / 100 < best.0);
        let visits = if may_gain(FULL_WORK_GAIN_PERCENT) { visits } else { visits / LITTLE_GAIN_WORK_DIVISOR };
        let is_pressed = may_gain(RETRY_GAIN_PERCENT);
        variant.placed(search, (drafter, floors), attempts, Allowance { visits, end, is_pressed })?;
    }
    Ok(())
}

/// The share of time and work that a variant gets to place its plans.
struct Allowance<'e> {
    visits: u64,
    end: End<'e>,
    /// Whether to retry from the decisions with the fewest bytes if nothing else fits.
    is_pressed: bool,
}

struct Variant<'k> {
    drafter: &'k Drafter<'k>,
    /// `None` for whole mini-batches.
    division: Option<&'k Division>,
}

impl<'k> Variant<'k> {
    /// Whether its operations with the fastest algorithms take less time than the best placed plan.
    fn may_win(&self, attempts: &Attempts<'_>) -> bool {
        let fastest = self.division.map_or(Nanos::ZERO, |division| division.fastest);
        attempts.time().is_none_or(|best| fastest < best)
    }

    /// Decisions with a stretch in parts that need as few bytes as possible, for budgets that nothing else fits; `None` if none exist, or without
    /// time.
    fn least(&self, end: End<'_>) -> Option<Least> {
        self.division.filter(|_| !end.is_over()).and_then(|_| least(self.drafter))
    }

    /// Places the plans of a search, unless they are certain or likely to be slower than the best placed plan.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
    fn placed<'m>(
        &self,
        search: PlanSearch<'m, 'k>,
        (whole, floors): (&Drafter<'_>, &Floors),
        attempts: &mut Attempts<'_>,
        Allowance { visits, end, is_pressed }: Allowance<'k>,
    ) -> Result<(), Error> {
        let best = attempts.time();
        if best.is_some_and(|best| search.bound() >= best) {
            // The best placed plan may be as fast as the bound.
            if self.division.is_none() {
                attempts.add_bound(search.lower_bound());
            }
            return Ok(());
        }
        if self.division.is_none() {
            let bound = search.placed(Some(floors), attempts, visits, end)?;
            bound.into_iter().for_each(|bound| attempts.add_bound(bound));
            return Ok(());
        }
        let is_hopeless =
            |best: Nanos| !search.is_empty() && search.found().0 > best.0 + best.0 * MAX_SLOWDOWN_PERCENT / 100;
        if best.is_some_and(|best| is_hopeless(best) || whole.end.is_over()) {
            return Ok(());
        }
        let (models, is_empty) = (search.models, search.is_empty());
        let mut own = Attempts::against(self.drafter, best);
        let mut bound = search.placed(None, &mut own, visits, end)?;
        if is_pressed
            && own.best().is_none()
            && (is_empty || own.has_any())
            && let Some(least) = self.least(end)
        {
            own.consider("least", least.draft.clone());
            bound = PlanSearch::begun(models, Some(&least), best, visits, end)?.placed(None, &mut own, visits, end)?;
        }
        bound.into_iter().for_each(|bound| own.add_bound(bound));
        self.join(whole, own, attempts);
        Ok(())
    }

    /// Adds the best plan with a stretch in parts to the attempts of the whole step.
    fn join(&self, whole: &Drafter<'_>, own: Attempts<'_>, attempts: &mut Attempts<'_>) {
        if let Some(found) = self.division.and_then(|division| division.outcome(whole, self.drafter, own)) {
            let name = found.bound.in_parts.as_ref().map_or_else(String::new, InParts::words);
            found.join(attempts, &name);
        }
    }
}

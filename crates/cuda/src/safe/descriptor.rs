//! The backend interface: objects of various kinds with typed attributes, finalized before use.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::Handle;
use crate::CudaError;
use crate::call::cudnn as call;
use crate::sys::cudnn::*;

/// An element of an attribute, with cuDNN's constant for its type.
pub(crate) trait Element: Copy {
    /// cuDNN's constant.
    const TYPE: ElementType;
    /// The value of unfilled elements.
    const EMPTY: Self;
}

macro_rules! elements {
    ($($type:ty = $name:ident, $empty:expr;)*) => {$(
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;
            const EMPTY: $type = $empty;
        }
    )*};
}

elements! {
    i64 = INT64, 0;
    f32 = FLOAT, 0.0;
    DataType = DATA_TYPE, DataType(0);
    ConvolutionMode = CONVOLUTION_MODE, ConvolutionMode(0);
    HeuristicMode = HEUR_MODE, HeuristicMode(0);
    KnobType = KNOB_TYPE, KnobType(0);
    NumericalNote = NUMERICAL_NOTE, NumericalNote(0);
    BehaviorNote = BEHAVIOR_NOTE, BehaviorNote(0);
    PointwiseMode = POINTWISE_MODE, PointwiseMode(0);
}

/// A backend object, which keeps alive the objects that it refers to.
pub(crate) struct Descriptor {
    handle: Arc<Handle>,
    raw: BackendDescriptor,
    kept: Vec<Arc<Descriptor>>,
}

// SAFETY: every call that takes the object holds the handle's lock; but for a plan that another handle has taken over, which is
// finalized, and which that handle alone runs, under its own.
unsafe impl Send for Descriptor {}
// SAFETY: as above.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    /// A new object without attributes.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn new(handle: &Arc<Handle>, kind: Kind) -> Result<Descriptor, CudaError> {
        let calling = handle.enter()?;
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::backend_create(calling.cudnn, kind) }?;
        drop(calling);
        Ok(Descriptor { handle: handle.clone(), raw, kept: Vec::new() })
    }

    /// An object of the host program, which destroys it.
    ///
    /// # Safety
    /// `raw` is alive as long as the result is used.
    pub unsafe fn of_program(handle: &Arc<Handle>, raw: BackendDescriptor) -> ManuallyDrop<Descriptor> {
        ManuallyDrop::new(Descriptor { handle: handle.clone(), raw, kept: Vec::new() })
    }

    /// This object with an attribute set.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`] if the kind has no such attribute or the values are wrong.
    pub fn with<T: Element>(self, attribute: Attribute, values: &[T]) -> Result<Descriptor, CudaError> {
        self.set(attribute, T::TYPE, values)?;
        Ok(self)
    }

    /// This object with an attribute set to other objects.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn with_objects(mut self, attribute: Attribute, objects: &[&Arc<Descriptor>]) -> Result<Descriptor, CudaError> {
        let raw: Vec<BackendDescriptor> = objects.iter().map(|object| object.raw).collect();
        self.set(attribute, ElementType::BACKEND_DESCRIPTOR, &raw)?;
        self.kept.extend(objects.iter().map(|&object| object.clone()));
        Ok(self)
    }

    /// This object with an attribute set to its handle.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn with_handle(self, attribute: Attribute) -> Result<Descriptor, CudaError> {
        let calling = self.handle.enter()?;
        let (handle, cudnn) = ([calling.handle], calling.cudnn);
        // SAFETY: the object is alive and `handle` is what C has for that type.
        unsafe { call::backend_set(cudnn, self.raw, attribute, ElementType::HANDLE, &handle) }?;
        drop(calling);
        Ok(self)
    }

    fn set<T>(&self, attribute: Attribute, element: ElementType, values: &[T]) -> Result<(), CudaError> {
        let calling = self.handle.enter()?;
        // SAFETY: the object is alive; `T` is what C has for `element`, by `Element` or by the callers above and below.
        unsafe { call::backend_set(calling.cudnn, self.raw, attribute, element, values) }
    }

    /// This object, checked by cuDNN and ready to use.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], also if the library does not support it.
    pub fn finalize(self) -> Result<Arc<Descriptor>, CudaError> {
        let calling = self.handle.enter()?;
        // SAFETY: the object is alive.
        unsafe { call::backend_finalize(calling.cudnn, self.raw) }?;
        drop(calling);
        Ok(Arc::new(self))
    }

    /// The values of an attribute, at most `most`.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn get<T: Element>(&self, attribute: Attribute, most: usize) -> Result<Vec<T>, CudaError> {
        let mut values = vec![T::EMPTY; most];
        let calling = self.handle.enter()?;
        // SAFETY: the object is alive, and every element type is an integer or a float: any bits are valid.
        let count = unsafe { call::backend_get(calling.cudnn, self.raw, attribute, T::TYPE, &mut values) }?;
        values.truncate(usize::try_from(count).unwrap_or(0));
        Ok(values)
    }

    /// The one value of an attribute.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`]; [`CudaError::Answer`] without one.
    pub fn get_one<T: Element>(&self, attribute: Attribute, what: &'static str) -> Result<T, CudaError> {
        let values = self.get(attribute, 1)?;
        values.first().copied().ok_or(CudaError::Answer { what, count: 0, expected: "one" })
    }

    /// The number of objects in an attribute.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn count(&self, attribute: Attribute) -> Result<usize, CudaError> {
        let calling = self.handle.enter()?;
        let none: &mut [BackendDescriptor] = &mut [];
        // SAFETY: the object is alive, and no place is offered to write to.
        let count =
            unsafe { call::backend_get(calling.cudnn, self.raw, attribute, ElementType::BACKEND_DESCRIPTOR, none) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The objects of an attribute, at most `most`, each of `kind`.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn get_objects(&self, attribute: Attribute, kind: Kind, most: usize) -> Result<Vec<Descriptor>, CudaError> {
        let mut objects =
            (0..most).map(|_| Descriptor::new(&self.handle, kind)).collect::<Result<Vec<Descriptor>, CudaError>>()?;
        let mut raw: Vec<BackendDescriptor> = objects.iter().map(|object| object.raw).collect();
        let calling = self.handle.enter()?;
        // SAFETY: the object is alive, and `raw` holds live objects of the kind for the library to fill.
        let count = unsafe {
            call::backend_get(calling.cudnn, self.raw, attribute, ElementType::BACKEND_DESCRIPTOR, &mut raw)
        }?;
        drop(calling);
        objects.truncate(usize::try_from(count).unwrap_or(0));
        Ok(objects)
    }

    /// The handle it was made with.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    pub(super) fn raw(&self) -> BackendDescriptor {
        self.raw
    }

    /// This object with an attribute set to device addresses; a null address means none.
    pub(super) fn with_addresses(
        self,
        attribute: Attribute,
        addresses: &[crate::sys::DevicePtr],
    ) -> Result<Descriptor, CudaError> {
        self.set(attribute, ElementType::VOID_PTR, addresses)?;
        Ok(self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed only here; objects that refer to it hold it alive.
        self.handle.destroy(|calling| unsafe { call::backend_destroy(calling.cudnn, self.raw) });
    }
}

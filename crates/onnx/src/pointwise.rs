//! Element-by-element operations, and the tensors that their backward passes read.

/// The tensors that the backward pass of an element-by-element operation reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Nothing: it passes the gradient on, scales it by a constant, or has none.
    Nothing,
    /// Its inputs.
    Inputs,
    /// Its output, so that it may overwrite its input.
    Output,
    /// Its inputs if it has two that depend on the samples, or learned ones; otherwise nothing.
    OtherFactor,
}

/// Looks up an operator; `None` if it does not work element by element.
pub fn of(operator: &str) -> Option<Reads> {
    Some(match operator {
        "Add" | "Sub" | "Sum" | "Mean" | "Neg" | "Floor" | "Ceil" | "Round" | "Sign" | "Not" | "And" | "Or" | "Xor"
        | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "IsNaN" | "IsInf" | "BitShift" => {
            Reads::Nothing
        }
        "Relu" | "Clip" | "Sigmoid" | "Tanh" | "Exp" | "Sqrt" | "Reciprocal" | "HardSigmoid" | "LeakyRelu" | "Elu"
        | "Selu" | "Celu" | "ThresholdedRelu" => Reads::Output,
        "HardSwish" | "Gelu" | "Erf" | "Softplus" | "Softsign" | "Mish" | "Swish" | "Log" | "Pow" | "Abs" | "Sin"
        | "Cos" | "Tan" | "Asin" | "Acos" | "Atan" | "Sinh" | "Cosh" | "Max" | "Min" | "PRelu" | "Where" | "Mod" => {
            Reads::Inputs
        }
        "Mul" | "Div" => Reads::OtherFactor,
        _ => return None,
    })
}

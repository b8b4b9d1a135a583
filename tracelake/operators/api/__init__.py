"""What an operator is written against: its context, inputs, outputs and outcome."""

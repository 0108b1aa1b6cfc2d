"""The exercises of lesson 11, Tensor parallel."""

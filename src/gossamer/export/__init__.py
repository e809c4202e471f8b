"""Taking a trained policy away: one step as an ONNX file, a torch program, or a folder for Hugging Face's Hub."""

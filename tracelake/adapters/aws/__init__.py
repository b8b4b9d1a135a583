"""What all clients of AWS share."""

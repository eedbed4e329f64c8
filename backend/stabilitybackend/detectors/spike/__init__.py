"""The detector of loss spikes."""

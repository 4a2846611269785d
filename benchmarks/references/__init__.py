"""Programs as somebody writes them by hand for one purpose: no retries, no errors, no settings. What ours is measured against."""

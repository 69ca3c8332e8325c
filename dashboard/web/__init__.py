"""Who may talk to the dashboard, and what answers?"""

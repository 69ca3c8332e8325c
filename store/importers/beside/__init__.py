"""What did the trainer write beside its rows: metrics, pictures?"""

"""What do several pages share?"""

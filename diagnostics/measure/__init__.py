"""What is measured of a step?"""

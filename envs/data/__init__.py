"""Which data do worlds read, and how do their tasks become a data set for others?"""

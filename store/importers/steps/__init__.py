"""What is a step of an import made of: episodes, and metrics beside them?"""

"""One file a form: how do lines, JSON, CSV, YAML and binary files become records of metrics?"""

"""How does a run leave Echoscope: which formats, what each holds, how is it written?"""
